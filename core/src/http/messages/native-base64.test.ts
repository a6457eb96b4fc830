import assert from "node:assert/strict";
import { it } from "node:test";
import "./native-base64.js";
import { base64Decode, base64Encode } from "@bufbuild/protobuf/wire";

it("protobuf's base64 is what Buffer makes of the same bytes, in every variant and length", () => {
  for (let length = 0; length < 70; length += 1) {
    const whole = Uint8Array.from({ length: length + 3 }, (_, index) => (index * 151 + length) % 256);
    const bytes = whole.subarray(3);
    const buffer = Buffer.from(bytes);
    assert.equal(base64Encode(bytes), buffer.toString("base64"));
    assert.equal(base64Encode(bytes, "std_raw"), buffer.toString("base64").replace(/=+$/, ""));
    assert.equal(base64Encode(bytes, "url"), buffer.toString("base64url"));
  }
});

it("protobuf decodes plain and irregular base64, and refuses other text", () => {
  for (let length = 0; length < 70; length += 1) {
    const bytes = Buffer.from(Array.from({ length }, (_, index) => (index * 151 + length) % 256));
    const text = bytes.toString("base64");
    const lines = text.replace(/.{8}/g, "$&\n");
    for (const variant of [text, `${text}\n`, text.replace(/=+$/, ""), bytes.toString("base64url"), lines]) {
      assert.deepEqual(Buffer.from(base64Decode(variant)), bytes, variant);
    }
  }
  assert.equal(Buffer.from(base64Decode("YQ==YWI=YWJj YQ")).toString(), "aababca");
  const rows = [
    ["YWJjY=", "abc"],
    ["=YWJjYW", "abca"],
    ["YQ=YWJj", "aabc"],
    ["-_ -_", "\u00fb\u00ff\u00bf"],
  ] as const;
  for (const [text, decoded] of rows)
    assert.equal(Buffer.from(base64Decode(text)).toString("latin1"), decoded, text);
  for (const none of ["QUJD!UJD", "QQ=!", "Q", "QUJD\nQ", "\u0141QQQ", "QUJDQUJ\u0144"]) {
    assert.throws(() => base64Decode(none), /invalid base64/, none);
  }
});
