import type { Comparison, Contender } from "../kit/benchmark.js";

/** Measurements of one run. */
export interface Sample {
  readonly tookMs: number;
  /** Of the contender's watched process; NaN where there is none. */
  readonly cpuMs: number;
  /** Of its main thread alone. */
  readonly mainMs: number;
  /** The longest turn of its event loop, on a processor. */
  readonly stallMs: number;
  readonly peakMiB: number;
}

export interface Measurement {
  readonly contender: Contender;
  readonly samples: readonly Sample[];
}

/** Turns are short, so that other load of the machine affects all contenders alike. */
const TURN_MS = 250;

/**
 * Measures the floor and the contenders in turns until each had its time. The floor comes first. Where that is less than
 * a turn, as in tests, whose numbers nobody compares, there are no first runs that do not count.
 */
export async function measure(comparison: Comparison, secondsEach: number): Promise<readonly Measurement[]> {
  const all = [comparison.floor, ...comparison.contenders];
  // The first run pays for connections, caches and compilation.
  if (secondsEach * 1000 >= TURN_MS) for (const contender of all) await sample(contender);
  const samples = all.map(() => [] as Sample[]);
  const tookMs = all.map(() => 0);
  const turnMs = Math.min(TURN_MS, secondsEach * 1000);
  const turns = Math.round((secondsEach * 1000) / turnMs);
  for (let turn = 0; turn < turns; turn += 1) {
    for (const [index, contender] of all.entries()) {
      // A run that is longer than a turn counts for its next turns, too.
      if (turn > 0 && (tookMs[index] ?? 0) >= secondsEach * 1000) continue;
      const startMs = performance.now();
      samples[index]?.push(...(await takeTurn(contender, turnMs)));
      tookMs[index] = (tookMs[index] ?? 0) + performance.now() - startMs;
    }
  }
  return all.map((contender, index) => ({ contender, samples: samples[index] ?? [] }));
}

async function takeTurn(contender: Contender, turnMs: number): Promise<readonly Sample[]> {
  const endMs = performance.now() + turnMs;
  const samples: Sample[] = [];
  const work = async (): Promise<void> => {
    do samples.push(await sample(contender));
    while (performance.now() < endMs);
  };
  await Promise.all(Array.from({ length: contender.atOnce ?? 1 }, work));
  return samples;
}

async function sample(contender: Contender): Promise<Sample> {
  const { watched } = contender;
  watched?.forgetPeak();
  await watched?.longestStallMs();
  const before = watched?.processorTime();
  const startMs = performance.now();
  const run = (await contender.once()) ?? {};
  const tookMs = run.tookMs ?? performance.now() - startMs;
  const after = watched?.processorTime();
  const sampled = {
    tookMs,
    cpuMs: (after?.allMs ?? Number.NaN) - (before?.allMs ?? Number.NaN),
    mainMs: (after?.mainMs ?? Number.NaN) - (before?.mainMs ?? Number.NaN),
    stallMs: (await watched?.longestStallMs()) ?? Number.NaN,
    peakMiB: watched?.peakMiB() ?? Number.NaN,
  };
  await run.undo?.();
  return sampled;
}
