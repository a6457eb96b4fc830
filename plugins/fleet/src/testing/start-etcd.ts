import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { freePorts } from "@coppice/core/testing";

/** Path of Debian's, or of another one that is named. */
export const ETCD = process.env["COPPICE_TEST_ETCD"] ?? "/usr/bin/etcd";

const NEWEST = process.env["COPPICE_TEST_NEWEST_ETCD"];

/** Those that the store is tested with. */
export const ETCDS = [
  { name: "etcd", program: ETCD, skip: reasonWithoutEtcd() },
  {
    name: "the newest etcd",
    program: NEWEST ?? "",
    skip: !NEWEST && "this host has no etcd 3.7, which npm test builds with Go",
  },
];

export function reasonWithoutEtcd(): string | false {
  return !existsSync(ETCD) && "this host has no etcd";
}

/** One member of a test's cluster. */
export interface Member {
  readonly url: string;
  /** Undefined while it does not run. */
  readonly pid: number | undefined;
  kill(signal?: NodeJS.Signals): Promise<void>;
  /** Starts it again, with its data. */
  start(): Promise<void>;
}

export interface Cluster extends AsyncDisposable {
  readonly members: readonly Member[];
  readonly endpoints: readonly string[];
}

export interface ClusterOptions {
  readonly count?: number;
  /** Directory of their data, which stays for the next start; a temporary one when absent. */
  readonly kept?: string;
  /** Path of etcd. */
  readonly program?: string;
  /** Further options of its command line. */
  readonly args?: readonly string[];
}

/** Starts members of etcd on loopback. */
export async function startEtcd({
  count = 1,
  kept,
  program = ETCD,
  args = [],
}: ClusterOptions = {}): Promise<Cluster> {
  const directory = kept ?? (await mkdtemp(join(tmpdir(), "coppice-etcd-")));
  const ports = await freePorts(count * 2);
  const places = Array.from({ length: count }, (_, index) => ({
    name: `etcd${index}`,
    url: `http://127.0.0.1:${ports[index * 2]}`,
    peerUrl: `http://127.0.0.1:${ports[index * 2 + 1]}`,
  }));
  const cluster = places.map(({ name, peerUrl }) => `${name}=${peerUrl}`).join(",");
  const members = places.map((place) => new EtcdProcess(place, { directory, cluster, program, args }));
  const stop = async (): Promise<void> => {
    await Promise.all(members.map((member) => member.kill()));
    if (kept === undefined) await rm(directory, { recursive: true });
  };
  try {
    await Promise.all(members.map((member) => member.start()));
  } catch (error) {
    await stop();
    throw error;
  }
  return { members, endpoints: places.map(({ url }) => url), [Symbol.asyncDispose]: stop };
}

class EtcdProcess implements Member {
  readonly url: string;
  readonly #program: string;
  readonly #args: readonly string[];
  #process: ChildProcess | undefined;

  constructor(
    { name, url, peerUrl }: { readonly name: string; readonly url: string; readonly peerUrl: string },
    {
      directory,
      cluster,
      program,
      args,
    }: {
      readonly directory: string;
      readonly cluster: string;
      readonly program: string;
      readonly args: readonly string[];
    },
  ) {
    this.url = url;
    this.#program = program;
    this.#args = [
      ["--name", name],
      ["--data-dir", join(directory, name)],
      ["--listen-client-urls", url],
      ["--advertise-client-urls", url],
      ["--listen-peer-urls", peerUrl],
      ["--initial-advertise-peer-urls", peerUrl],
      ["--initial-cluster", cluster],
      // Fast elections: tests kill leaders.
      ["--heartbeat-interval", "50"],
      ["--election-timeout", "500"],
      ["--logger", "zap"],
      ["--log-level", "fatal"],
      args,
    ].flat();
  }

  get pid(): number | undefined {
    return this.#process?.pid;
  }

  async start(): Promise<void> {
    const child = spawn(this.#program, this.#args, { stdio: "ignore" });
    this.#process = child;
    child.once("exit", () => (this.#process = undefined));
    for (let attempt = 0; attempt < 300; attempt += 1) {
      const health = await fetch(`${this.url}/health`).catch(() => undefined);
      if (health?.ok === true) return;
      if (this.#process === undefined) break;
      await sleep(100);
    }
    throw new Error(`etcd at ${this.url} does not serve`);
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const child = this.#process;
    if (child === undefined) return;
    const ended = once(child, "exit");
    child.kill(signal);
    await ended;
  }
}
