import {
  measureTraffic,
  simulateFleet,
  type SimulationOptions,
  startEtcd,
} from "@coppice/plugin-fleet/testing";
import type { Benchmark } from "../../kit/benchmark.js";
import { WatchedProcess } from "../../kit/watched-process.js";

const SEED = 20;
const GIB = 1024;
const UNEQUAL: SimulationOptions["memoriesMiB"] = [32 * GIB, 32 * GIB, 64 * GIB, 512 * GIB];
const UNLIKE: SimulationOptions["limitsMiB"] = [256, 512, 1024];
const WATCHERS = 20;
const ROUNDS = 200;
/** In the whole fleet; as many sandboxes end. */
const CREATIONS_PER_S = 10;
/** What a server watches: servers, sandboxes and cordons. */
const STREAMS = 3;
const RENEWALS_PER_S = 0.3;

/**
 * Servers in this process, which place sandboxes by the code of a fleet; and what a change and a renewal cost a server
 * and etcd, with their real messages, for as many servers.
 */
export const fleetSimulation: Benchmark = async (_server, { servers, sandboxes }) => {
  const cases: readonly (readonly [string, Partial<SimulationOptions>])[] = [
    ["any server is asked", {}],
    ["the same three are asked", { asked: 3 }],
    ["… and as many end by chance", { asked: 3, replaced: sandboxes }],
    ["… and need unlike memory", { asked: 3, replaced: sandboxes, limitsMiB: UNLIKE }],
    ["machines of 32 to 512 GiB", { memoriesMiB: UNEQUAL }],
    ["… the same three are asked", { memoriesMiB: UNEQUAL, asked: 3 }],
  ];
  const lines = [`fleet-simulation: ${sandboxes} sandboxes on ${servers} servers, beside an even spread`];
  for (const [label, options] of cases) {
    const { most, least, kept } = await simulateFleet({ servers, sandboxes, seed: SEED, ...options });
    const part = `${(kept * 100).toFixed(0)} % stay where they are asked for`;
    lines.push(`  ${label}: fullest ${most.toFixed(2)}x, emptiest ${least.toFixed(2)}x, ${part}`);
  }
  return { comparisons: [], notes: [lines.join("\n"), await traffic(servers)], close: async () => undefined };
};

async function traffic(servers: number): Promise<string> {
  await using etcd = await startEtcd();
  const [member] = etcd.members;
  const process = new WatchedProcess(member?.pid ?? 0);
  const { event, commit, renewal } = await measureTraffic({
    endpoint: member?.url ?? "",
    watchers: WATCHERS,
    rounds: ROUNDS,
    processorMs: () => process.processorTime().allMs,
  });
  const changes = 2 * CREATIONS_PER_S;
  const part = (ms: number): string => `${(ms / 10).toFixed(0)} % of a processor`;
  const renewals = servers * RENEWALS_PER_S;
  return [
    `fleet-simulation: traffic of ${servers} servers, with ${CREATIONS_PER_S} creations and as many ends a second`,
    `  a change at a server that hears of it: ${event.bytes.toFixed(0)} bytes, ${(event.processorMs * 1000).toFixed(0)} µs of etcd`,
    `  its commit: ${commit.bytes.toFixed(0)} bytes, ${(commit.processorMs * 1000).toFixed(0)} µs of etcd`,
    `  a renewal: ${renewal.bytes.toFixed(0)} bytes, ${(renewal.processorMs * 1000).toFixed(0)} µs of etcd`,
    `  each server: ${changes} changes and ${((changes * event.bytes + RENEWALS_PER_S * renewal.bytes) / 1024).toFixed(1)} KiB a second, of which ${(RENEWALS_PER_S * renewal.bytes).toFixed(0)} bytes for its lease`,
    `  etcd: ${servers * STREAMS} watch streams, ${servers * changes} changes told a second: ${part(servers * changes * event.processorMs)}`,
    `  etcd: ${changes} commits a second: ${part(changes * commit.processorMs)}; ${renewals.toFixed(0)} renewals: ${part(renewals * renewal.processorMs)}`,
  ].join("\n");
}
