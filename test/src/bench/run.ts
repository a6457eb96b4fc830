import { parseArgs } from "node:util";
import { BenchedServer } from "./kit/benched-server.js";
import type { Benchmark, BenchmarkOptions } from "./kit/benchmark.js";
import { builds } from "./benchmarks/builds.js";
import { burst } from "./benchmarks/burst.js";
import { codeOutput } from "./benchmarks/code-output.js";
import { create } from "./benchmarks/create.js";
import { exec } from "./benchmarks/exec.js";
import { files } from "./benchmarks/files.js";
import { idle } from "./benchmarks/idle.js";
import { images } from "./benchmarks/images.js";
import { kernelMemory } from "./benchmarks/kernel-memory.js";
import { manyKernels } from "./benchmarks/many-kernels.js";
import { measure } from "./report/measure.js";
import { proxy } from "./benchmarks/proxy.js";
import { report, reportReading } from "./report/report.js";
import { runCode } from "./benchmarks/run-code.js";
import { shellExec } from "./benchmarks/shell-exec.js";
import { stdout } from "./benchmarks/stdout.js";
import { v1Command } from "./benchmarks/v1-command.js";
import { v1Follow } from "./benchmarks/v1-follow.js";
import { v1Log } from "./benchmarks/v1-log.js";
import type { BackendName } from "../harness/server/start-full-server.js";

const BENCHMARKS: ReadonlyMap<string, Benchmark> = new Map([
  ["create", create],
  ["burst", burst],
  ["exec", exec],
  ["run-code", runCode],
  ["code-output", codeOutput],
  ["kernel-memory", kernelMemory],
  ["many-kernels", manyKernels],
  ["files", files],
  ["proxy", proxy],
  ["stdout", stdout],
  ["idle", idle],
  ["images", images],
  ["builds", builds],
  ["shell-exec", shellExec],
  ["v1-command", v1Command],
  ["v1-log", v1Log],
  ["v1-follow", v1Follow],
]);

const BACKENDS: readonly BackendName[] = ["local-process", "linux-namespaces", "jail-freebsd"];
const DEFAULT_SECONDS = 3;
const DEFAULT_MIB = 1024;
const DEFAULT_SANDBOXES = 200;
/** sysexits.h: EX_USAGE. */
const EXIT_USAGE = 64;
const USAGE =
  `usage: npm run bench -- ${[...BENCHMARKS.keys()].join("|")} [--seconds N] [--backend B] [--mib N] [--sandboxes N]\n` +
  `  N seconds for each line of the report, ${DEFAULT_SECONDS} when absent\n` +
  `  B ${BACKENDS.join(" or ")}, the first when absent\n` +
  `  --mib: the most that files, code-output, stdout, shell-exec, images and builds carry at once, ${DEFAULT_MIB} when absent\n` +
  `  --sandboxes: how many idle and burst make, ${DEFAULT_SANDBOXES} when absent`;

process.exitCode = await main(process.argv.slice(2));

/** Runs one benchmark, or several one after the other. @returns the exit code. */
async function main(args: readonly string[]): Promise<number> {
  const asked = parse(args);
  if (asked === undefined) {
    console.error(USAGE);
    return EXIT_USAGE;
  }
  for (const benchmark of asked.benchmarks) await run(benchmark, asked);
  return 0;
}

function parse(args: readonly string[]) {
  try {
    const { positionals, values } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        seconds: { type: "string", default: String(DEFAULT_SECONDS) },
        backend: { type: "string", default: BACKENDS[0] ?? "" },
        mib: { type: "string", default: String(DEFAULT_MIB) },
        sandboxes: { type: "string", default: String(DEFAULT_SANDBOXES) },
      },
    });
    const seconds = Number(values.seconds);
    const benchmarks = positionals.map((name) => BENCHMARKS.get(name));
    const backend = BACKENDS.find((name) => name === values.backend);
    const largeBytes = Number(values.mib) * 2 ** 20;
    const sandboxes = Number(values.sandboxes);
    const areSane = [largeBytes, sandboxes].every((number) => Number.isInteger(number) && number > 0);
    const isSane = seconds > 0 && areSane && benchmarks.length > 0;
    if (!isSane || backend === undefined) return undefined;
    const known = benchmarks.filter((benchmark) => benchmark !== undefined);
    return known.length === benchmarks.length
      ? { benchmarks: known, seconds, backend, largeBytes, sandboxes }
      : undefined;
  } catch {
    return undefined;
  }
}

/** Each benchmark gets a server of its own, so that none measures what another left behind. */
async function run(benchmark: Benchmark, options: BenchmarkOptions): Promise<void> {
  await using server = await BenchedServer.start(options.backend);
  const prepared = await benchmark(server, options);
  try {
    for (const reading of prepared.readings ?? []) console.log(`${reportReading(reading)}\n`);
    for (const note of prepared.notes ?? []) console.log(`${note}\n`);
    for (const comparison of prepared.comparisons) {
      console.log(`${report(comparison.title, await measure(comparison, options.seconds))}\n`);
    }
  } finally {
    await prepared.close();
  }
}
