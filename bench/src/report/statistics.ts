/** Summary of durations, in the unit of the samples. */
export interface Summary {
  readonly count: number;
  readonly p50: number;
  readonly p95: number;
  readonly p99: number;
  readonly mean: number;
}

/** @throws RangeError without a sample. */
export function summarize(samples: readonly number[]): Summary {
  if (samples.length === 0) throw new RangeError("there is nothing to summarize");
  const sorted = samples.toSorted((one, other) => one - other);
  return {
    count: sorted.length,
    p50: percentile(sorted, 50),
    p95: percentile(sorted, 95),
    p99: percentile(sorted, 99),
    mean: sorted.reduce((sum, sample) => sum + sample, 0) / sorted.length,
  };
}

/** By nearest rank: always a sample that was really taken. */
function percentile(sorted: readonly number[], percent: number): number {
  const rank = Math.max(1, Math.ceil((percent / 100) * sorted.length));
  return sorted[rank - 1] ?? Number.NaN;
}
