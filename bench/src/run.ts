import { once } from "node:events";
import { API_KEY } from "@coppice/test/harness/server/api-key.js";
import { BenchedServer } from "./kit/benched-server.js";
import type { Benchmark, BenchmarkOptions } from "./kit/benchmark.js";
import { builds } from "./benchmarks/builds.js";
import { burst } from "./benchmarks/burst.js";
import { codeOutput } from "./benchmarks/code-output.js";
import { create } from "./benchmarks/create.js";
import { exec } from "./benchmarks/exec.js";
import { fleet } from "./benchmarks/fleet/fleet.js";
import { fleetMap } from "./benchmarks/fleet/fleet-map.js";
import { fleetSimulation } from "./benchmarks/fleet/fleet-simulation.js";
import { files } from "./benchmarks/files.js";
import { idle } from "./benchmarks/idle.js";
import { images } from "./benchmarks/images.js";
import { kernelMemory } from "./benchmarks/kernel-memory.js";
import { manyKernels } from "./benchmarks/many-kernels.js";
import { BACKENDS, DEFAULTS, parseAsked, SAME_RUN } from "./asked.js";
import { measure } from "./report/measure.js";
import { pool } from "./benchmarks/pool.js";
import { proxyBesideNginx } from "./benchmarks/proxy/beside-nginx.js";
import { proxy } from "./benchmarks/proxy/proxy.js";
import { websockets } from "./benchmarks/proxy/websockets.js";
import { report, reportCompared, reportReading } from "./report/report.js";
import { besidePeer } from "./rows/beside-peer.js";
import type { ComparedRow } from "./kit/compared-row.js";
import { recordRows } from "./rows/record-rows.js";
import { burstRows } from "./rows/burst-rows.js";
import { downloadRows, fileRows } from "./rows/file-rows.js";
import { proxyRows } from "./rows/proxy-rows.js";
import { outputRows, startRows } from "./rows/start-rows.js";
import type { Row } from "./rows/row.js";
import { runCode } from "./benchmarks/run-code.js";
import { shellExec } from "./benchmarks/shell-exec.js";
import { transfers } from "./benchmarks/transfers.js";
import { stdout } from "./benchmarks/stdout.js";
import { v1Command } from "./benchmarks/v1-command.js";
import { v1Follow } from "./benchmarks/v1-follow.js";
import { v1Log } from "./benchmarks/v1-log.js";
import { ServerClient } from "./kit/server-client.js";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";

const BENCHMARKS: ReadonlyMap<string, Benchmark> = new Map([
  ["create", create],
  ["burst", burst],
  ["pool", pool],
  ["exec", exec],
  ["run-code", runCode],
  ["code-output", codeOutput],
  ["kernel-memory", kernelMemory],
  ["many-kernels", manyKernels],
  ["files", files],
  ["proxy", proxy],
  ["proxy-nginx", proxyBesideNginx],
  ["websockets", websockets],
  ["transfers", transfers],
  ["stdout", stdout],
  ["fleet", fleet],
  ["fleet-map", fleetMap],
  ["fleet-simulation", fleetSimulation],
  ["idle", idle],
  ["images", images],
  ["builds", builds],
  ["shell-exec", shellExec],
  ["v1-command", v1Command],
  ["v1-log", v1Log],
  ["v1-follow", v1Follow],
]);

/** Rows that are measured beside a peer, by the benchmark's name. */
const ROWS: ReadonlyMap<string, readonly Row[]> = new Map([
  ["exec", startRows],
  ["stdout", outputRows],
  ["burst", burstRows],
  ["files", fileRows],
  ["download", downloadRows],
  ["proxy", proxyRows],
]);

/** Starts a server and measures nothing. */
const SERVE = "serve";
/** As in config/linux.yaml. */
const PEERS = { basePool: { max: 100 } };
/** sysexits.h: EX_USAGE. */
const EXIT_USAGE = 64;
const USAGE =
  `usage: npm run bench -- ${[...BENCHMARKS.keys()].join("|")} [--seconds N] [--backend B] [--mib N] [--sandboxes N] [--servers N] [--connections N] [--record ${SAME_RUN}]\n` +
  `  N seconds for each line of the report, ${DEFAULTS.seconds} when absent\n` +
  `  B ${BACKENDS.join(" or ")}, the first when absent\n` +
  `  --mib: the most that files, code-output, stdout, shell-exec, images and builds carry at once, ${DEFAULTS.mib} when absent\n` +
  `  --sandboxes: how many idle, burst, fleet-map and fleet-simulation make, ${DEFAULTS.sandboxes} when absent\n` +
  `  --servers: of fleet-simulation, ${DEFAULTS.servers} when absent\n` +
  `  --connections: of websockets, ${DEFAULTS.connections} when absent\n` +
  `  --record ${SAME_RUN}: keeps the rows of websockets, transfers, pool and idle in docs/measurements.json\n` +
  `       npm run bench -- ${[...ROWS.keys()].join("|")} --peer URL [--peer-key KEY] [--record NAME]\n` +
  `  measures rows beside a peer; --record keeps them in docs/measurements.json, under this name of the peer\n` +
  `       npm run bench -- serve [--backend B]\n` +
  `  is a peer until it is interrupted`;

process.exitCode = await main(process.argv.slice(2));

/** Runs one benchmark, or several one after the other. @returns the exit code. */
async function main(args: readonly string[]): Promise<number> {
  const asked = parseAsked(args, { benchmarks: [...BENCHMARKS.keys(), SERVE], rows: [...ROWS.keys()] });
  if (asked === undefined) {
    console.error(USAGE);
    return EXIT_USAGE;
  }
  for (const name of asked.names) {
    if (name === SERVE) await serve(asked.backend);
    else if (asked.peer !== undefined)
      await runBesidePeer(ROWS.get(name) ?? [], { ...asked, peer: asked.peer });
    else await run(BENCHMARKS.get(name), asked);
  }
  return 0;
}

/** Starts a server that another checkout can measure itself against, until this program is interrupted. */
async function serve(backend: BackendName): Promise<void> {
  await using server = await BenchedServer.start(backend, PEERS);
  console.log(`${server.url} is a peer, with the API key ${API_KEY}`);
  await Promise.race([once(process, "SIGINT"), once(process, "SIGTERM")]);
}

async function runBesidePeer(
  rows: readonly Row[],
  options: BenchmarkOptions & {
    readonly peer: string;
    readonly peerKey: string;
    readonly record?: string | undefined;
  },
): Promise<void> {
  const { backend, record } = options;
  await using here = await BenchedServer.start(backend, PEERS);
  await using peer = new ServerClient(options.peer, options.peerKey);
  const compared: ComparedRow[] = [];
  for (const row of rows) compared.push(await besidePeer(row, { here, peer }, options));
  console.log(`${reportCompared(compared)}\n`);
  if (record !== undefined)
    await recordRows(
      compared.map((row) => ({ ...row, against: record })),
      backend,
    );
}

/** Each benchmark gets a server of its own, so that none measures what another left behind. */
async function run(
  benchmark: Benchmark | undefined,
  options: BenchmarkOptions & { readonly record?: string | undefined },
): Promise<void> {
  if (benchmark === undefined) return;
  await using server = await BenchedServer.start(options.backend);
  const prepared = await benchmark(server, options);
  try {
    for (const reading of prepared.readings ?? []) console.log(`${reportReading(reading)}\n`);
    const rows = prepared.rows ?? [];
    for (const row of rows) console.log(`${reportCompared([row], row.against)}\n`);
    if (options.record !== undefined) await recordRows(rows, options.backend);
    for (const note of prepared.notes ?? []) console.log(`${note}\n`);
    for (const comparison of prepared.comparisons) {
      console.log(`${report(comparison.title, await measure(comparison, options.seconds))}\n`);
    }
  } finally {
    await prepared.close();
  }
}
