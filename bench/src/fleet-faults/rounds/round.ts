import { monitorEventLoopDelay } from "node:perf_hooks";
import { setTimeout as pause } from "node:timers/promises";
import { SeededRandom } from "@coppice/core/testing";
import type { History } from "../history/history.js";
import type { FaultedFleet } from "../world/faulted-fleet.js";
import { disagreements, killUnknown, readCounters, untilRecovered } from "./checks.js";
import { type Fault, FAULTS, type Scene } from "./faults.js";
import type { Load } from "./load.js";
import { LossWatch } from "./loss-watch.js";

export interface RoundReport {
  readonly seed: number;
  readonly fault: string;
  /** A server that has sandboxes. */
  readonly victim: string;
  /** What must not have happened, as text. */
  readonly violations: readonly string[];
  /** From the beginning of the fault until the loss was told; undefined where none had to be. */
  readonly toldMs: number | undefined;
  /** Sandboxes that were lost, or ended with their server. */
  readonly cost: number;
  readonly durationMs: number;
  /** Of these, ends that the fault does not explain: no violation on a machine that has too much to do. */
  readonly unexplained: number;
  /** True on such a machine; late tidings are no violation there, either. */
  readonly isStarved: boolean;
}

/** Time of load before a fault, and after it. */
const AROUND_MS = 200;
/** A loss is told so long after the end of the lease at the latest. */
const TELLING_MS = 2000;
/** What is waited for before a loss counts as not told at all. */
const MOST_TELLING_MS = 15_000;
/** Part of a lease that a timer of this process may be late: with more, leases end by themselves, and nothing is in time. */
const MOST_LAG = 0.1;
const NANOSECONDS = 1_000_000;

export interface RoundOptions {
  readonly fleet: FaultedFleet;
  readonly load: Load;
  readonly history: History;
  readonly seed: number;
  /** Name of the only fault; one by the seed when absent. */
  readonly fault?: string | undefined;
}

/**
 * One round: a whole fleet under load, a fault, and its end; then everything has to agree, and the answers that clients
 * got have to be explained by sandboxes that each have one counter and one end.
 */
export async function runRound({
  fleet,
  load,
  history,
  seed,
  fault: only,
}: RoundOptions): Promise<RoundReport> {
  const startedAt = performance.now();
  const random = new SeededRandom(seed);
  const names = Object.keys(FAULTS);
  const name = only ?? names[random.below(names.length)] ?? "";
  const fault = FAULTS[name];
  if (fault === undefined) throw new Error(`there is no fault '${name}'`);
  const violations: string[] = [];

  await load.fill(seed);
  const owners = new Map(
    (await fleet.records()).flatMap(({ id, node, isLost }) => (isLost ? [] : [[id, node]])),
  );
  const busy = [...new Set(owners.values())].toSorted();
  const victim = fleet.node(busy[random.below(busy.length)] ?? "");
  const before = load.running;
  const watch = new LossWatch(fleet, load);
  const lag = monitorEventLoopDelay();
  lag.enable();
  load.start(seed);
  await pause(AROUND_MS);
  const toldMs = await happen(
    fault,
    { fleet, random, node: victim, leader: await fleet.leader() },
    { load, watch },
  );
  await pause(AROUND_MS);
  await load.stop();
  await watch.stop();

  violations.push(...(await untilRecovered(fleet)));
  await killUnknown(fleet, load).catch(() => undefined);
  violations.push(...(await disagreements(fleet, load)));
  violations.push(...(await readCounters(fleet, load)));
  lag.disable();
  const isStarved = lag.max / NANOSECONDS > MOST_LAG * fleet.leaseMs;
  violations.push(...history.contradictions());

  const ended = before.filter((id) => load.ended.includes(id) && !history.has(id, "kill"));
  const unexplained = ended.filter((id) => !fault.costsSandboxes || owners.get(id) !== victim.name);
  if (!isStarved)
    for (const id of unexplained)
      violations.push(`${id} of ${String(owners.get(id))} has ended, without a reason`);
  const limitMs = fleet.leaseMs + TELLING_MS;
  if (!isStarved && toldMs !== undefined && toldMs > limitMs)
    violations.push(`the loss was told after ${toldMs.toFixed(0)} ms, more than ${limitMs}`);
  load.forgetEnded();
  const durationMs = performance.now() - startedAt;
  return {
    seed,
    fault: name,
    victim: victim.name,
    violations,
    toldMs,
    cost: ended.length,
    unexplained: unexplained.length,
    durationMs,
    isStarved,
  };
}

/** @returns how long the loss of the victim's sandboxes took to be told to clients, where it had to be. */
async function happen(
  fault: Fault,
  scene: Omit<Scene, "untilGivenUp">,
  { load, watch }: { readonly load: Load; readonly watch: LossWatch },
): Promise<number | undefined> {
  const beganAt = performance.now();
  let toldMs: number | undefined;
  const tries: Promise<void>[] = [];
  const untilGivenUp = async (): Promise<void> => {
    const lost = await watch.untilTold(scene.node, MOST_TELLING_MS);
    toldMs = performance.now() - beganAt;
    // Now nobody may serve them, the victim least of all.
    tries.push(...lost.map((id) => load.tryEverywhere(id)));
    await pause(AROUND_MS);
  };
  await fault.run({ ...scene, untilGivenUp });
  await scene.fleet.network.heal();
  await Promise.all(tries);
  return toldMs;
}
