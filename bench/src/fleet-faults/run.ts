import { parseArgs } from "node:util";
import { FAULTS } from "./rounds/faults.js";
import type { RoundReport } from "./rounds/round.js";
import type { RoundsOptions, RoundsReport } from "./rounds/rounds.js";
import { reasonWithoutIsolation, runIsolated } from "@coppice/test/harness/host/isolated.js";

const BACKENDS = ["local-process", "linux-namespaces"] as const;
const LEASE_MS = 2000;
/** sysexits.h: EX_USAGE. */
const EXIT_USAGE = 64;
const USAGE =
  "usage: npm run soak -- fleet --rounds N [--seed N] [--fleets N] [--backend B] [--fault F]\n" +
  "  --seed: of the first round; each further one has the next\n" +
  "  --fleets: how many at a time, 1 when absent\n" +
  `  B ${BACKENDS.join(" or ")}, the first when absent\n` +
  `  F of ${JSON.stringify(Object.keys(FAULTS), undefined, 2)}`;

process.exitCode = await main(process.argv.slice(2));

interface Wanted {
  readonly rounds: number;
  readonly fleets: number;
  readonly options: Omit<RoundsOptions, "rounds">;
}

/** @returns the exit code: 1 when something was wrong or is left. */
async function main(args: readonly string[]): Promise<number> {
  const wanted = parse(args);
  if (wanted === undefined) {
    console.error(USAGE);
    return EXIT_USAGE;
  }
  const reason = reasonWithoutIsolation();
  if (reason !== false) throw new Error(reason);
  const { rounds, fleets, options } = wanted;
  const done: RoundReport[] = [];
  const faults: string[] = [];
  const part = Math.ceil(rounds / fleets);
  const runFleet = async (index: number): Promise<void> => {
    const end = Math.min(options.seed + (index + 1) * part, options.seed + rounds);
    for (let seed = options.seed + index * part; seed < end;) {
      const own = { ...options, seed, rounds: end - seed };
      try {
        const report = await runIsolated<RoundsReport>(import.meta.resolve("./run-isolated-rounds.js"), own);
        done.push(...report.rounds);
        faults.push(...report.left, ...report.rounds.flatMap(describeViolations));
        // A new fleet goes on where one was given up.
        seed += report.rounds.length;
      } catch (error) {
        faults.push(`rounds from ${seed}: ${String(error)}`);
        return;
      }
    }
  };
  await Promise.all(Array.from({ length: fleets }, (_, index) => runFleet(index)));
  for (const line of summarize(done)) console.log(line);
  for (const fault of faults) console.log(`FAULT ${fault}`);
  console.log(`${done.length} rounds, ${faults.length} faults`);
  return faults.length === 0 ? 0 : 1;
}

function describeViolations({ seed, fault, victim, violations }: RoundReport): readonly string[] {
  return violations.map((one) => `round ${seed} (${fault}, ${victim}): ${one}`);
}

/** A line for each fault: how often, what it cost, and how soon its loss was told where the machine had time. */
function summarize(rounds: readonly RoundReport[]): readonly string[] {
  return [...Map.groupBy(rounds, ({ fault }) => fault)].map(([fault, all]) => {
    const cost = all.reduce((sum, one) => sum + one.cost, 0);
    const unexplained = all.reduce((sum, one) => sum + one.unexplained, 0);
    const told = all.flatMap(({ toldMs, isStarved }) => (isStarved ? [] : (toldMs ?? [])));
    const latest = told.length === 0 ? "" : `, told after ${Math.max(...told).toFixed(0)} ms at most`;
    const strange = unexplained === 0 ? "" : ` (${unexplained} unexplained, on a starved machine)`;
    return `${all.length} times ${fault}: ${cost} sandboxes ended${strange}${latest}`;
  });
}

function parse(args: readonly string[]): Wanted | undefined {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        rounds: { type: "string", default: "" },
        seed: { type: "string", default: String(Date.now() % 1_000_000) },
        fleets: { type: "string", default: "1" },
        backend: { type: "string", default: BACKENDS[0] },
        fault: { type: "string" },
      },
    });
    const backend = BACKENDS.find((name) => name === values.backend);
    const [rounds = 0, seed = 0, fleets = 0] = [values.rounds, values.seed, values.fleets].map(Number);
    const isSane = Number.isInteger(rounds) && rounds > 0 && Number.isInteger(seed) && fleets > 0;
    const isKnown = values.fault === undefined || values.fault in FAULTS;
    if (!isSane || !isKnown || backend === undefined) return undefined;
    return { rounds, fleets, options: { backend, leaseMs: LEASE_MS, seed, fault: values.fault } };
  } catch {
    return undefined;
  }
}
