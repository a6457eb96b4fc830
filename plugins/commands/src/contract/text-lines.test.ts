import assert from "node:assert/strict";
import { it } from "node:test";
import { TextLines } from "./text-lines.js";

const bytes = (text: string) => new TextEncoder().encode(text);

it("a line comes out whole however its bytes arrive, split inside a character too", () => {
  const lines = new TextLines(1000);
  const out = [...bytes("gr\u00fcn\nZ\u{1f600}")].flatMap((byte) => lines.push(Uint8Array.of(byte)));
  assert.deepEqual(out, ["gr\u00fcn\n"]);
  assert.deepEqual(lines.finish(), ["Z\u{1f600}"]);
  assert.deepEqual(new TextLines(1000).push(bytes("a\n\nb\nc")), ["a\n", "\n", "b\n"]);
});

it("bytes that are not UTF-8 become replacement characters, at the end as well", () => {
  const lines = new TextLines(1000);
  assert.deepEqual(lines.push(Uint8Array.of(0xff, 0x0a, 0xe2, 0x82)), ["\ufffd\n"]);
  assert.deepEqual(lines.finish(), ["\ufffd"]);
});

it("a line without end does not grow in memory", () => {
  const lines = new TextLines(10);
  assert.deepEqual(lines.push(bytes("1234567")), []);
  assert.deepEqual(lines.push(bytes("89012")), ["123456789012"]);
  assert.deepEqual(lines.push(bytes("x\n")), ["x\n"]);
  assert.deepEqual(lines.finish(), []);
});
