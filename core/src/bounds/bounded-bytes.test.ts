import assert from "node:assert/strict";
import { it } from "node:test";
import { BoundedBytes } from "./bounded-bytes.js";

it("keeps the first bytes or the last ones, and tells what it dropped", () => {
  const first = new BoundedBytes(5);
  const last = new BoundedBytes(5, "last");
  const window = Buffer.from("abc");
  for (const bytes of [first, last]) bytes.push(window);
  window.fill("-");
  assert.deepEqual([first.text, last.text, first.isTruncated, first.isFull], ["abc", "abc", false, false]);
  for (const text of ["de", "f", "", "ghijklm"]) {
    for (const bytes of [first, last]) bytes.push(Buffer.from(text));
  }
  assert.deepEqual([first.text, last.text], ["abcde", "ijklm"]);
  assert.deepEqual([first.isTruncated, last.isTruncated, first.isFull], [true, true, true]);
});
