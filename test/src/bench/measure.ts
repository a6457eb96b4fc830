import type { Comparison, Contender } from "./benchmark.js";

export interface Measurement {
  readonly contender: Contender;
  readonly samplesMs: readonly number[];
}

/** Turns are this short, so that what else this machine does meets all alike. */
const TURN_MS = 250;

/** Measures the floor and the contenders in turns until each had its time. The floor comes first. */
export async function measure(comparison: Comparison, secondsEach: number): Promise<readonly Measurement[]> {
  const all = [comparison.floor, ...comparison.contenders];
  // The first run pays for connections, caches and compilation.
  for (const contender of all) await sample(contender);
  const samples = all.map(() => [] as number[]);
  const turns = Math.max(1, Math.round((secondsEach * 1000) / TURN_MS));
  for (let turn = 0; turn < turns; turn += 1) {
    for (const [index, contender] of all.entries()) samples[index]?.push(...(await takeTurn(contender)));
  }
  return all.map((contender, index) => ({ contender, samplesMs: samples[index] ?? [] }));
}

async function takeTurn(contender: Contender): Promise<readonly number[]> {
  const endMs = performance.now() + TURN_MS;
  const samplesMs: number[] = [];
  const work = async (): Promise<void> => {
    do samplesMs.push(await sample(contender));
    while (performance.now() < endMs);
  };
  await Promise.all(Array.from({ length: contender.atOnce ?? 1 }, work));
  return samplesMs;
}

async function sample(contender: Contender): Promise<number> {
  const startMs = performance.now();
  const run = (await contender.once()) ?? {};
  const tookMs = run.tookMs ?? performance.now() - startMs;
  await run.undo?.();
  return tookMs;
}
