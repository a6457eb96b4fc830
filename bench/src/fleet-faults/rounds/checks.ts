import { readdir, readlink } from "node:fs/promises";
import { setTimeout as pause } from "node:timers/promises";
import { untilHealthy } from "../world/etcd-member.js";
import type { FaultedFleet, Recorded } from "../world/faulted-fleet.js";
import { Client } from "./client.js";
import type { Load } from "./load.js";

/** Time for the fleet to be whole again after a fault. */
const RECOVERY_MS = 60_000;
/**
 * Time for what the servers have to agree with the record. A failed commit is tried again after five seconds, and a
 * machine with too much to do has its own faults.
 */
const AGREEMENT_MS = 60_000;

/** @returns what does not serve, as text */
export async function untilRecovered(fleet: FaultedFleet): Promise<readonly string[]> {
  const deadline = performance.now() + RECOVERY_MS;
  if (!(await untilHealthy(fleet.members, RECOVERY_MS))) return ["etcd is not healthy again"];
  let lacking: readonly string[] = [];
  while (performance.now() < deadline) {
    const ready = await Promise.all(fleet.nodes.map((node) => node.isReady()));
    const members = new Set(await fleet.memberNames().catch(() => []));
    lacking = fleet.nodes.flatMap(({ name }, index) => (ready[index] && members.has(name) ? [] : [name]));
    if (lacking.length === 0) return [];
    await pause(100);
  }
  return lacking.map(
    (name) => `${name} is not ready again:\n${fleet.node(name).printed.slice(-10).join("\n")}`,
  );
}

/** Compares what all tell, until it agrees. @returns what does not, as text */
export async function disagreements(fleet: FaultedFleet, load: Load): Promise<readonly string[]> {
  const deadline = performance.now() + AGREEMENT_MS;
  for (;;) {
    const found = await compare(fleet, load).catch((error: unknown) => [
      `a comparison failed: ${String(error)}`,
    ]);
    if (found.length === 0 || performance.now() > deadline) return found;
    await pause(200);
  }
}

async function compare(fleet: FaultedFleet, load: Load): Promise<readonly string[]> {
  const faults: string[] = [];
  const expect = (isRight: boolean, fault: string): void => void (isRight || faults.push(fault));
  const records = await fleet.records();
  const recorded = new Map(records.flatMap((one) => (one.isLost ? [] : [[one.id, one.node] as const])));

  // What quotas count.
  const counted = new Set(await fleet.countedIds());
  for (const id of counted) expect(recorded.has(id), `quotas count ${id}, ${whose(id, records)}`);
  for (const id of recorded.keys())
    expect(counted.has(id), `quotas do not count ${id}, ${whose(id, records)}`);

  // What the machines have.
  const processes = await processesOf(fleet);
  for (const node of fleet.nodes) {
    for (const id of await node.sandboxesOnDisk())
      expect(recorded.get(id) === node.name, `${node.name} has the files of ${id}, ${whose(id, records)}`);
    for (const id of processes.get(node.name) ?? [])
      expect(recorded.get(id) === node.name, `${node.name} has processes of ${id}, ${whose(id, records)}`);
    const own = [...recorded.values()].filter((name) => name === node.name).length;
    const running = await node.metric("coppice_sandboxes_running");
    expect(running === own, `${node.name} counts ${running} sandboxes, the record says ${own}`);
    // Every server tells the same.
    const list = await new Client(node.url).list();
    if (list.is !== "done") {
      faults.push(`${node.name} lists nothing: ${list.why}`);
      continue;
    }
    const { ids, names, isComplete } = list.value;
    expect(isComplete, `the list of ${node.name} is not complete`);
    for (const id of ids) expect(recorded.has(id), `${node.name} lists ${id}, ${whose(id, records)}`);
    for (const id of recorded.keys())
      expect(ids.has(id), `${node.name} does not list ${id}, ${whose(id, records)}`);
    expect(
      new Set(names.values()).size === names.size,
      `one Idempotency-Key made two: ${[...names].join(" ")}`,
    );
  }

  // What clients were told, at last by asking again: a kill may have taken effect without an answer.
  await load.learnEnds();
  for (const id of load.running)
    expect(recorded.has(id), `clients take ${id} for running, ${whose(id, records)}`);
  for (const id of load.ended)
    expect(!recorded.has(id), `clients were told that ${id} ended, ${whose(id, records)}`);
  return faults;
}

function whose(id: string, records: readonly Recorded[]): string {
  const record = records.find((one) => one.id === id);
  if (record === undefined) return "of which there is no record";
  return record.isLost ? `which ${record.node} has lost` : `which is recorded as ${record.node}'s`;
}

/** By server, the sandboxes on its machine that have processes. */
async function processesOf({ nodes }: FaultedFleet): Promise<ReadonlyMap<string, ReadonlySet<string>>> {
  const found = new Map(nodes.map(({ name }) => [name, new Set<string>()]));
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const places = await Promise.all(
    pids.flatMap((pid) =>
      [`/proc/${pid}/cwd`, `/proc/${pid}/root`].map((path) => readlink(path).catch(() => "")),
    ),
  );
  for (const { name, directory } of nodes)
    for (const place of places) {
      if (!place.startsWith(directory)) continue;
      const [, id] = /(?:coppice-|sandboxes\/)([a-z0-9]{20})\b/.exec(place.slice(directory.length)) ?? [];
      if (id !== undefined) found.get(name)?.add(id);
    }
  return found;
}

/** Reads all counters through all servers. @returns what could not be read, as text */
export async function readCounters(fleet: FaultedFleet, load: Load): Promise<readonly string[]> {
  const deadline = performance.now() + AGREEMENT_MS;
  const faults: string[] = [];
  for (const id of load.running)
    for (const [index, { name }] of fleet.nodes.entries()) {
      let why = await load.read(id, index);
      while (why !== undefined && performance.now() < deadline) {
        await pause(200);
        why = await load.read(id, index);
      }
      if (why !== undefined) faults.push(`the counter of ${id} cannot be read through ${name}: ${why}`);
    }
  return faults;
}

/** Sandboxes that a creation made of which its client was told nothing. */
export async function killUnknown(fleet: FaultedFleet, load: Load): Promise<void> {
  const client = new Client(fleet.nodes[0]?.url ?? "");
  for (const { id, isLost } of await fleet.records()) if (!isLost && !load.knows(id)) await client.kill(id);
}
