import { History } from "../history/history.js";
import { FaultedFleet } from "../world/faulted-fleet.js";
import type { NodeBackend } from "../world/fleet-node.js";
import { leftOver } from "./left-over.js";
import { Load } from "./load.js";
import { type RoundReport, runRound } from "./round.js";

export interface RoundsOptions {
  readonly backend: NodeBackend;
  readonly leaseMs: number;
  /** Of the first round; each further one has the next. */
  readonly seed: number;
  readonly rounds: number;
  /** Name of the only fault; all of them when absent. */
  readonly fault?: string | undefined;
  /** True: the servers never stop serving by themselves, which has to be noticed. False when absent. */
  readonly isUnfenced?: boolean;
  readonly onRound?: (report: RoundReport) => void;
}

export interface RoundsReport {
  readonly rounds: readonly RoundReport[];
  /** What is left when all sandboxes are killed and all servers stopped, as text. */
  readonly left: readonly string[];
  readonly operations: number;
  /** Answers that told clients nothing, with their numbers. */
  readonly unknown: Readonly<Record<string, number>>;
}

/** Runs rounds on one fleet. In an isolated process. Ends with the first round that has a violation. */
export async function runRounds({
  backend,
  leaseMs,
  seed,
  rounds,
  fault,
  isUnfenced = false,
  onRound,
}: RoundsOptions): Promise<RoundsReport> {
  const fleet = await FaultedFleet.open({ backend, leaseMs, isUnfenced });
  const history = new History();
  const load = new Load(fleet, history);
  const done: RoundReport[] = [];
  for (let index = 0; index < rounds; index += 1) {
    const report = await runRound({ fleet, load, history, seed: seed + index, fault });
    done.push(report);
    onRound?.(report);
    // Later rounds would find the same again.
    if (report.violations.length > 0) break;
  }
  const hasViolation = done.some(({ violations }) => violations.length > 0);
  return {
    rounds: done,
    left: hasViolation ? [] : await leftOver(fleet, load),
    operations: history.count,
    unknown: Object.fromEntries(load.failures),
  };
}
