import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { recordSandboxes, startEtcd } from "@coppice/plugin-fleet/testing";
import { startMember } from "../../kit/benched-fleet.js";
import type { Benchmark } from "../../kit/benchmark.js";

const ROUNDS = 5;
const SETTLE_MS = 3000;
const MIB = 2 ** 20;

/** Starts of a server of a fleet without sandboxes, and of one with many that others have: time and memory. */
export const fleetMap: Benchmark = async (_server, { backend, sandboxes: count }) => {
  await using etcd = await startEtcd();
  const store = { endpoints: etcd.endpoints };
  const secret = randomBytes(32).toString("hex");
  const starts = async (expected: number) => {
    const tookMs: number[] = [];
    const usedMiB: number[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      const startMs = performance.now();
      await using server = await startMember(backend, { node: "a", secret, etcd: store });
      tookMs.push(performance.now() - startMs);
      await sleep(SETTLE_MS);
      usedMiB.push(server.process.residentBytes() / MIB);
      const known = await server.metric("coppice_fleet_sandboxes");
      if (known !== expected) throw new Error(`the server knows of ${known} sandboxes`);
    }
    return { tookMs, usedMiB };
  };
  const empty = await starts(0);
  await recordSandboxes(store, count);
  const full = await starts(count);
  const reading = (title: string, unit: "ms" | "MiB", of: (one: typeof empty) => readonly number[]) => ({
    title: `fleet-map: ${title}`,
    unit,
    rows: [
      { label: "a fleet without sandboxes", samples: of(empty) },
      { label: `${count} sandboxes of another server`, samples: of(full) },
    ],
  });
  return {
    comparisons: [],
    readings: [
      reading("start of a server", "ms", ({ tookMs }) => tookMs),
      reading("memory of the server", "MiB", ({ usedMiB }) => usedMiB),
    ],
    close: async () => undefined,
  };
};
