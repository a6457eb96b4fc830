import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import type { Benchmark } from "../kit/benchmark.js";
import { spawnToEnd } from "../kit/spawn-to-end.js";

const ROUNDS = 5;

/** Creation of many sandboxes at the same moment: time until each caller has its answer. */
export const burst: Benchmark = async (server, { sandboxes: count }) => {
  const floor: number[] = [];
  const made: number[] = [];
  const wholes: number[] = [];
  // Shared state that the first sandbox creates does not count for any of them.
  await server.killSandbox(await server.createSandbox());
  for (let round = 0; round < ROUNDS; round += 1) {
    floor.push(...(await allAtOnce(count, () => makeDirectory(server.scratch))).map(({ tookMs }) => tookMs));
    const startMs = performance.now();
    const created = await allAtOnce(count, () => server.createSandbox());
    wholes.push(performance.now() - startMs);
    made.push(...created.map(({ tookMs }) => tookMs));
    await Promise.all(created.map(({ value }) => server.killSandbox(value)));
  }
  return {
    readings: [
      {
        title: `burst: ${count} sandboxes asked for at once, ${ROUNDS} times, none refused`,
        unit: "ms",
        rows: [
          { label: "mkdtemp and spawn('true') in one process", samples: floor },
          { label: "POST /v2/sandboxes", samples: made },
          { label: "until all were made", samples: wholes },
        ],
      },
    ],
    comparisons: [],
    close: async () => undefined,
  };
};

async function allAtOnce<T>(
  count: number,
  once: () => Promise<T>,
): Promise<readonly { readonly value: T; readonly tookMs: number }[]> {
  const startMs = performance.now();
  return Promise.all(
    Array.from({ length: count }, async () => {
      const value = await once();
      return { value, tookMs: performance.now() - startMs };
    }),
  );
}

async function makeDirectory(scratch: string): Promise<void> {
  const directory = await mkdtemp(join(scratch, "floor-"));
  await spawnToEnd("true");
  await rm(directory, { recursive: true });
}
