import assert from "node:assert/strict";
import { it } from "node:test";
import { parseByteRanges } from "./request-headers.js";

it("A range is the bytes it names that exist", () => {
  for (const [header, start, length] of [
    ["bytes=0-3", 0, 4],
    ["bytes=7-", 7, 3],
    ["bytes=9-99999999999999999999", 9, 1],
    ["bytes=-4", 6, 4],
    ["bytes=-40", 0, 10],
    ["bytes= 1 - 1 ", 1, 1],
    ["bytes=,0-1,", 0, 2],
    ["bytes=0-1,20-30,-0", 0, 2],
  ] as const) {
    assert.deepEqual(parseByteRanges(header, 10), [{ start, length }], header);
  }
});

it("Several ranges come in the order in which they were asked for", () => {
  assert.deepEqual(parseByteRanges("bytes=-1, 0-1,10-,4-5", 10), [
    { start: 9, length: 1 },
    { start: 0, length: 2 },
    { start: 4, length: 2 },
  ]);
});

it("An invalid range, or one past the end, cannot be satisfied", () => {
  for (const header of [
    "bytes=10-",
    "bytes=20-30,40-50",
    "bytes=5-4",
    "bytes=0-1,5-4",
    "bytes=-0",
    "bytes=-",
    "bytes=--1",
    "bytes=a-b",
    "bytes=0-1,x",
    "lines=1-2",
  ]) {
    assert.equal(parseByteRanges(header, 10), "unsatisfiable", header);
  }
  assert.equal(parseByteRanges("bytes=a-b", 0), "unsatisfiable");
});

it("No range, more than there is, or an empty file mean the whole file", () => {
  assert.equal(parseByteRanges(undefined, 10), "whole");
  assert.equal(parseByteRanges("bytes=", 10), "whole");
  assert.equal(parseByteRanges("bytes=0-7,2-4", 10), "whole");
  assert.equal(parseByteRanges("bytes=0-99", 0), "whole");
});
