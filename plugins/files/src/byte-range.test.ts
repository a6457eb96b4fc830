import assert from "node:assert/strict";
import { test } from "node:test";
import { parseByteRange } from "./byte-range.js";

test("A range is the bytes it names that exist", () => {
  assert.deepEqual(parseByteRange("bytes=0-3", 10), { start: 0, length: 4 });
  assert.deepEqual(parseByteRange("bytes=7-", 10), { start: 7, length: 3 });
  assert.deepEqual(parseByteRange("bytes=9-99999999999999999999", 10), { start: 9, length: 1 });
  assert.deepEqual(parseByteRange("bytes=-4", 10), { start: 6, length: 4 });
  assert.deepEqual(parseByteRange("bytes=-40", 10), { start: 0, length: 10 });
  assert.deepEqual(parseByteRange("bytes= 1 - 1 ", 10), { start: 1, length: 1 });
});

test("What is no range, or none of this file, cannot be satisfied", () => {
  for (const header of [
    "bytes=10-",
    "bytes=5-4",
    "bytes=-0",
    "bytes=-",
    "bytes=a-b",
    "bytes=",
    "lines=1-2",
  ]) {
    assert.equal(parseByteRange(header, 10), "unsatisfiable", header);
  }
});

test("Without a range, with several, or for an empty file everything is meant", () => {
  assert.equal(parseByteRange(undefined, 10), "whole");
  assert.equal(parseByteRange("bytes=0-1,4-5", 10), "whole");
  assert.equal(parseByteRange("bytes=0-99", 0), "whole");
});
