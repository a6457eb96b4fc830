import { parseArgs } from "node:util";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";
import { soak, type SoakOptions } from "./soak.js";

const BACKENDS: readonly BackendName[] = ["linux-namespaces", "local-process"];
/** sysexits.h: EX_USAGE. */
const EXIT_USAGE = 64;
const USAGE =
  "usage: npm run soak -- --minutes N [--backend B] [--clients N] [--seed N]\n" +
  `  B ${BACKENDS.join(" or ")}, the first when absent\n` +
  "  --clients: how many at a time, 4 when absent\n" +
  "  --seed: of a run that is to be like another one";

process.exitCode = await main(process.argv.slice(2));

/** @returns the exit code: 1 when something was wrong or is left. */
async function main(args: readonly string[]): Promise<number> {
  const options = parse(args);
  if (options === undefined) {
    console.error(USAGE);
    return EXIT_USAGE;
  }
  console.log(`seed ${options.seed}, ${options.clients} clients on ${options.backend}`);
  const { faults, done, residentMiB } = await soak(options);
  console.log(
    Object.entries(done)
      .map(([what, times]) => `${times} ${what}`)
      .join(", "),
  );
  console.log(`memory of the server: ${residentMiB.join(", ")} MiB (before, half-way, at the end, at rest)`);
  for (const fault of faults) console.log(`FAULT ${fault}`);
  console.log(`${faults.length} faults`);
  return faults.length === 0 ? 0 : 1;
}

function parse(args: readonly string[]): SoakOptions | undefined {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        minutes: { type: "string", default: "" },
        backend: { type: "string", default: BACKENDS[0] ?? "" },
        clients: { type: "string", default: "4" },
        seed: { type: "string", default: String(Date.now() % 1_000_000) },
      },
    });
    const backend = BACKENDS.find((name) => name === values.backend);
    const [minutes, clients, seed] = [values.minutes, values.clients, values.seed].map(Number);
    const isSane =
      Number(minutes) > 0 && Number.isInteger(clients) && Number(clients) > 0 && Number.isInteger(seed);
    if (!isSane || backend === undefined) return undefined;
    return { backend, durationMs: Number(minutes) * 60_000, clients: Number(clients), seed: Number(seed) };
  } catch {
    return undefined;
  }
}
