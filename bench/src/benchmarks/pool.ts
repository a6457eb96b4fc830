import { setTimeout as sleep } from "node:timers/promises";
import { summarize } from "../report/statistics.js";
import { BenchedServer, WARM } from "../kit/benched-server.js";
import type { Benchmark } from "../kit/benchmark.js";

const KEPT = 4;
const EVERY_MS = 500;

/** Creations at a steady rate from a small pool: time to the end of the first cell. */
export const pool: Benchmark = async (_server, { backend, seconds }) => {
  await using server = await BenchedServer.start(backend, { pool: { min: KEPT } });
  await server.untilThere("the pool is full", WARM, KEPT);
  const toFirstCell = async (template: string): Promise<number> => {
    const startMs = performance.now();
    const sandbox = await server.createSandbox(template);
    await server.askCode(sandbox, "/execute", { code: "1+1" });
    const tookMs = performance.now() - startMs;
    await server.killSandbox(sandbox);
    return tookMs;
  };
  const cold = [await toFirstCell("base")];
  const creations: Promise<number>[] = [];
  for (
    const endMs = performance.now() + seconds * 1000;
    performance.now() < endMs || creations.length === 0;
  ) {
    creations.push(toFirstCell("warm"));
    await sleep(EVERY_MS);
  }
  const samples = await Promise.all(creations);
  const { p50, p95 } = summarize(samples);
  const row = `first cell from a pool of ${KEPT}, ${1000 / EVERY_MS} creations a second, p95`;
  return {
    rows: [{ row, unit: "ms", here: p95, peer: p50, against: "its p50" }],
    readings: [
      {
        title: `pool: ${KEPT} kept, ${1000 / EVERY_MS} creations a second, to the end of the first cell`,
        unit: "ms",
        rows: [
          { label: "from the pool", samples },
          { label: "without a pool", samples: cold },
        ],
      },
    ],
    comparisons: [],
    close: async () => undefined,
  };
};
