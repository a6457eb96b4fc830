import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import { eventually, SeededRandom } from "@coppice/core/testing";
import { Sandbox } from "@e2b/code-interpreter";
import { WatchedProcess } from "../kit/watched-process.js";
import { pointSdkAt } from "@coppice/test/harness/server/point-sdk-at.js";
import { Scrape } from "@coppice/test/harness/clients/scrape.js";
import {
  makeInstallation,
  namespacePlugins,
  ServerProcess,
} from "@coppice/test/harness/server/server-process.js";
import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";
import { account } from "./account.js";
import { findDigest, findHoldings, growth } from "./holdings.js";
import { SoakedSandbox } from "./soaked-sandbox.js";
import { type Countable, Tally } from "./tally.js";

export interface SoakOptions {
  readonly backend: BackendName;
  readonly durationMs: number;
  /** Clients at a time. */
  readonly clients: number;
  readonly seed: number;
}

export interface SoakReport {
  /** Faults, as text. */
  readonly faults: readonly string[];
  /** Operations that certainly happened. */
  readonly done: Readonly<Record<Countable, number>>;
  /** Of the server's process: before the load, in the middle of it, at its end, and at rest. */
  readonly residentMiB: readonly number[];
}

const SETTLE_MS = 30_000;
/** From the middle of the load to its end: before that, heap and caches grow to their working size. */
const MOST_GROWN_MIB = 64;
const LIFE_MS = 600_000;
const MIB = 2 ** 20;

/** Puts a new server under mixed load, ends everything, and returns the failures and leftovers. */
export async function soak(options: SoakOptions): Promise<SoakReport> {
  const { backend, durationMs, clients, seed } = options;
  const installation = await makeInstallation({
    config: { sandboxes: { maximum: 100, defaultBackend: backend } },
    plugins: (directory) => ({
      "legacy-shims": {},
      ...(backend === "linux-namespaces" ? namespacePlugins(directory) : {}),
    }),
  });
  try {
    const scratch = join(installation.directory, "tmp");
    await mkdir(scratch);
    await using server = await ServerProcess.start(installation.configFile, { TMPDIR: scratch });
    pointSdkAt(server.url);
    const watched = new WatchedProcess(server.pid);
    const residentMiB = (): number => Math.round(watched.residentBytes() / MIB);
    const tally = new Tally();
    const hasFacets = backend === "linux-namespaces";
    const live = (random: SeededRandom): Promise<void> => liveOnce({ random, tally, hasFacets });

    // Things that are made once and kept (templates, caches, connections) must exist before the first count.
    for (let life = 0; life < 3; life += 1) await live(new SeededRandom(seed + life));
    const place = { pid: server.pid, directory: installation.directory };
    const first = await Sandbox.create();
    const digest = await findDigest(place);
    // The first kernel of a server starts the threads that all of them share.
    await first.runCode("1");
    await first.kill();
    tally.sure("sandboxes");
    tally.sure("executions");
    const by = { ...place, digest, port: Number(new URL(server.url).port) };
    await eventually("a server at rest", () => comesToRest(server), SETTLE_MS);
    const before = await findHoldings(by);
    const resident = [residentMiB()];

    const endMs = performance.now() + durationMs;
    const client = async (index: number): Promise<void> => {
      const random = new SeededRandom(seed + 1000 * (index + 1));
      while (performance.now() < endMs) await live(random);
    };
    const middle = setTimeout(() => resident.push(residentMiB()), durationMs / 2);
    await Promise.all(Array.from({ length: clients }, (_, index) => client(index)));
    clearTimeout(middle);
    resident.push(residentMiB());

    await settled(async () => ((await comesToRest(server)) ? [] : ["sandboxes"]));
    const left = await settled(async () => growth(before, await findHoldings(by)));
    resident.push(residentMiB());
    const opsUrl = server.urls["ops"] ?? "";
    const unaccounted = await settled(async () => account(await Scrape.of(opsUrl), tally));
    const grownMiB = (resident.at(-1) ?? 0) - (resident[1] ?? 0);
    const end = await server.stop();
    return {
      faults: [
        ...tally.faults,
        ...left.map((one) => `left behind: ${one}`),
        ...unaccounted,
        ...(grownMiB > MOST_GROWN_MIB ? [`the server's memory grew by ${grownMiB} MiB`] : []),
        ...(end.code === 0 ? [] : [`the server's stop: ${JSON.stringify(end)}`]),
      ],
      done: tally.done,
      residentMiB: resident,
    };
  } finally {
    await installation.remove();
  }
}

interface LifeOptions {
  readonly random: SeededRandom;
  readonly tally: Tally;
  readonly hasFacets: boolean;
}

/** One sandbox, from its creation to its end. */
async function liveOnce({ random, tally, hasFacets }: LifeOptions): Promise<void> {
  const isImpatient = random.below(5) === 0;
  let sandbox: Sandbox;
  try {
    const signal = isImpatient ? AbortSignal.timeout(1 + random.below(100)) : undefined;
    sandbox = await Sandbox.create({ timeoutMs: LIFE_MS, ...(signal === undefined ? {} : { signal }) });
    tally.sure("sandboxes");
  } catch (error) {
    tally.perhaps("sandboxes");
    if (isImpatient) tally.sure("disconnects");
    else tally.fault(`a creation: ${String(error)}`);
    return;
  }
  const soaked = new SoakedSandbox({ sandbox, random, tally, hasFacets });
  for (let rounds = 1 + random.below(6); rounds > 0; rounds -= 1) await soaked.doSomething();
  const end = random.below(4);
  if (end === 0) {
    soaked.doom();
    await Promise.all([soaked.doSomething(), sandbox.kill()]);
  } else if (end === 1) {
    soaked.doom();
    await Promise.all([soaked.doSomething(), sandbox.setTimeout(1_000)]);
    await eventually("the end of its time", async () => !(await sandbox.isRunning()), SETTLE_MS);
  } else if (!(await sandbox.kill())) tally.fault("a kill: there was no such sandbox");
}

/**
 * Ends all sandboxes. A client that left during a creation does not know its sandbox, which may be created after
 * all other requests: repeated until none is left.
 */
async function comesToRest(server: ServerProcess): Promise<boolean> {
  const unknown = await Sandbox.list({ limit: 100 }).nextItems();
  await Promise.all(unknown.map(({ sandboxId }) => Sandbox.kill(sandboxId)));
  const scrape = await Scrape.of(server.urls["ops"] ?? "");
  const active = ["coppice_sandboxes_running", "coppice_sandboxes_paused", "coppice_commands_active"];
  return active.every((name) => scrape.sum(name) === 0);
}

/**
 * Repeats a check that should find nothing, for a while.
 * @returns its last answer
 */
async function settled(check: () => Promise<readonly string[]>): Promise<readonly string[]> {
  let last: readonly string[] = [];
  await eventually(
    "nothing left",
    async () => {
      last = await check();
      return last.length === 0;
    },
    SETTLE_MS,
  ).catch(() => undefined);
  return last;
}
