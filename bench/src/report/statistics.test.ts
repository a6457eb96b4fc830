import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { summarize } from "./statistics.js";

describe("a summary of durations", () => {
  it("has percentiles by nearest rank, whatever the order of the samples", () => {
    const samples = Array.from({ length: 100 }, (_, index) => 100 - index);
    assert.deepEqual(summarize(samples), { count: 100, p50: 50, p95: 95, p99: 99, mean: 50.5 });
  });

  it("of one sample is that sample", () => {
    assert.deepEqual(summarize([7]), { count: 1, p50: 7, p95: 7, p99: 7, mean: 7 });
  });

  it("of nothing is refused", () => {
    assert.throws(() => summarize([]), RangeError);
  });
});
