import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { ETCD } from "@coppice/plugin-fleet/testing";
import type { Host } from "@coppice/test/harness/host/test-network.js";

const CLIENT_PORT = 2379;
const PEER_PORT = 2380;

export interface StoredEntry {
  readonly key: string;
  readonly value: string;
}

/** A member of etcd on a machine of the test's network. */
export class EtcdMember {
  readonly host: Host;
  readonly url: string;
  readonly #words: readonly string[];
  #child: ChildProcess | undefined;
  #slowed: ChildProcess | undefined;

  /** @param hosts of all members. */
  constructor(host: Host, hosts: readonly Host[], directory: string) {
    this.host = host;
    this.url = `http://${host.address}:${CLIENT_PORT}`;
    const peerUrl = (one: Host): string => `http://${one.address}:${PEER_PORT}`;
    this.#words = [
      ["--name", host.name],
      ["--data-dir", join(directory, host.name)],
      ["--listen-client-urls", this.url],
      ["--advertise-client-urls", this.url],
      ["--listen-peer-urls", peerUrl(host)],
      ["--initial-advertise-peer-urls", peerUrl(host)],
      ["--initial-cluster", hosts.map((one) => `${one.name}=${peerUrl(one)}`).join(",")],
      // Fast elections, for short rounds; tens of them fit into a lease's length.
      ["--heartbeat-interval", "50"],
      ["--election-timeout", "500"],
      ["--logger", "zap"],
      ["--log-level", "fatal"],
    ].flat();
  }

  /** Starts it, with the data that it has. */
  start(): void {
    const [program = "", ...words] = [...this.host.enter, ETCD, ...this.#words];
    this.#child = spawn(program, words, { stdio: "ignore" });
  }

  async kill(): Promise<void> {
    const child = this.#child;
    if (child === undefined) return;
    const ended = once(child, "exit");
    child.kill("SIGKILL");
    await ended;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal);
  }

  /** Makes each of its flushes to the disk take longer, until `hasFastDisk`: strace delays the system calls. */
  async hasSlowDisk(delayMs: number): Promise<void> {
    const pid = this.#child?.pid;
    if (pid === undefined) return;
    const inject = `fdatasync,fsync:delay_enter=${delayMs * 1000}`;
    const words = ["-f", "-qqq", "-e", "trace=fdatasync,fsync", "-e", `inject=${inject}`, "-o", "/dev/null"];
    this.#slowed = spawn("strace", [...words, "-p", String(pid)], { stdio: "ignore" });
    await once(this.#slowed, "spawn");
  }

  async hasFastDisk(): Promise<void> {
    const slowed = this.#slowed;
    this.#slowed = undefined;
    if (slowed === undefined || slowed.exitCode !== null) return;
    const ended = once(slowed, "exit");
    slowed.kill("SIGINT");
    await ended;
  }

  /** True when it knows a leader that has a majority. */
  async isHealthy(): Promise<boolean> {
    const answer = await fetch(`${this.url}/health`, { signal: AbortSignal.timeout(1000) }).catch(
      () => undefined,
    );
    return answer?.ok === true && ((await answer.json()) as { readonly health: string }).health === "true";
  }

  async isLeader(): Promise<boolean> {
    try {
      const { header, leader } = (await this.#ask("maintenance/status", {})) as {
        readonly header: { readonly member_id: string };
        readonly leader?: string;
      };
      return leader === header.member_id;
    } catch {
      return false;
    }
  }

  /** All entries whose keys begin so, as of one moment. @throws Error without a majority. */
  async entries(prefix: string): Promise<readonly StoredEntry[]> {
    const after = Buffer.from(prefix);
    after[after.length - 1] = (after.at(-1) ?? 0) + 1;
    const body = { key: Buffer.from(prefix).toString("base64"), range_end: after.toString("base64") };
    const { kvs = [] } = (await this.#ask("kv/range", body)) as {
      readonly kvs?: readonly Partial<StoredEntry>[];
    };
    return kvs.map(({ key = "", value = "" }) => ({
      key: Buffer.from(key, "base64").toString().slice(prefix.length),
      value: Buffer.from(value, "base64").toString(),
    }));
  }

  async #ask(path: string, body: object): Promise<unknown> {
    const answer = await fetch(`${this.url}/v3/${path}`, {
      method: "POST",
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(1000),
    });
    if (!answer.ok) throw new Error(`${this.host.name} answered ${answer.status}: ${await answer.text()}`);
    return answer.json();
  }
}

/** Waits until all serve. */
export async function untilHealthy(members: readonly EtcdMember[], timeoutMs: number): Promise<boolean> {
  const deadline = performance.now() + timeoutMs;
  while (performance.now() < deadline) {
    const healthy = await Promise.all(members.map((member) => member.isHealthy()));
    if (healthy.every(Boolean)) return true;
    await pause(50);
  }
  return false;
}
