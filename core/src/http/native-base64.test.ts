import assert from "node:assert/strict";
import { test } from "node:test";
import "./native-base64.js";
import { base64Encode } from "@bufbuild/protobuf/wire";

test("protobuf's base64 is what Buffer makes of the same bytes, in every variant and length", () => {
  for (let length = 0; length < 70; length += 1) {
    const whole = Uint8Array.from({ length: length + 3 }, (_, index) => (index * 151 + length) % 256);
    const bytes = whole.subarray(3);
    const buffer = Buffer.from(bytes);
    assert.equal(base64Encode(bytes), buffer.toString("base64"));
    assert.equal(base64Encode(bytes, "std_raw"), buffer.toString("base64").replace(/=+$/, ""));
    assert.equal(base64Encode(bytes, "url"), buffer.toString("base64url"));
  }
});
