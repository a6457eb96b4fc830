import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { it } from "node:test";
import { putBase64 } from "./native-base64.js";

it("base64 in a buffer is that of Node for every length and place, and nothing around it changes", () => {
  const bytes = randomBytes(400);
  const every = Uint8Array.from({ length: 256 }, (_, value) => value);
  const pieces = [every, ...Array.from({ length: 301 }, (_, length) => bytes.subarray(length % 7, length))];
  for (const piece of [...pieces, randomBytes(32_768), randomBytes(100_001)]) {
    const text = Buffer.from(piece).toString("base64");
    const target = Buffer.alloc(text.length + 3, "-");
    assert.equal(putBase64(target, 2, piece), text.length + 2);
    assert.equal(target.toString("latin1"), `--${text}-`);
  }
});

it("base64 that does not fit is refused, and nothing is written", () => {
  const target = Buffer.alloc(10, "-");
  for (const [at, length] of [
    [7, 3],
    [11, 0],
    [-1, 1],
    [0, 9],
  ] as const)
    assert.throws(() => putBase64(target, at, randomBytes(length)), RangeError, `${length} bytes at ${at}`);
  assert.equal(target.toString(), "-".repeat(10));
});
