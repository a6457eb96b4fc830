import type { Duplex } from "node:stream";
import type { AgentConnection } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import {
  sharedUntilFailure,
  type Command,
  type EgressRules,
  type Files,
  type FullLimits,
  type Process,
  type Sandbox,
  type SandboxId,
  type SnapshotId,
  type Stats,
  type User,
} from "@coppice/core/backend";
import type { Datasets } from "./datasets.js";
import type { Jails } from "./jails.js";

export interface JailSandboxOptions {
  readonly id: SandboxId;
  /** Of its dataset and jail. */
  readonly name: string;
  readonly limits: FullLimits;
  /** In the jail. */
  readonly agent: AgentConnection;
  readonly datasets: Datasets;
  readonly jails: Jails;
  /** Replaces what it may reach outside; absent where sandboxes are not connected. */
  readonly onRestrict: ((rules: EgressRules) => Promise<void>) | undefined;
  /** Ends all of it and frees everything. */
  readonly onDestroy: () => Promise<void>;
}

const MEBIBYTE = 2 ** 20;

/** A jail, with an agent in it to which this server is connected. */
export class JailSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly files: Files;
  readonly pausing = { pause: () => this.#pause(), resume: () => this.#resume() };
  readonly snapshots = { take: (id: SnapshotId) => this.#takeSnapshot(id) };
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
  readonly adoption = { processes: async () => this.#agent.processes() };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: JailSandboxOptions;
  #isDestroyed = false;
  /** Rules replace each other in the order in which they came. */
  #restricted: Promise<void> = Promise.resolve();

  constructor(options: JailSandboxOptions) {
    const { onRestrict } = options;
    this.id = options.id;
    this.files = options.agent.files;
    this.#options = options;
    if (onRestrict !== undefined) {
      this.networking = { restrict: (rules) => this.#restrict(() => onRestrict(rules)) };
    }
  }

  async spawn(command: Command): Promise<Process> {
    return this.#agent.spawn(command);
  }

  async user(name?: string): Promise<User> {
    return this.#agent.user(name);
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    return this.#agent.dial(port, signal);
  }

  async stats(): Promise<Stats> {
    void this.#agent;
    const { datasets, limits, name } = this.#options;
    const diskTotalBytes = limits.diskMiB * MEBIBYTE;
    return {
      cpuCount: limits.cpuCount,
      cpuUsedPercent: 0,
      memoryUsedBytes: 0,
      memoryTotalBytes: limits.memoryMiB * MEBIBYTE,
      memoryCacheBytes: 0,
      diskUsedBytes: Math.min(await datasets.usedBytes(name), diskTotalBytes),
      diskTotalBytes,
    };
  }

  /** Leaves the sandbox as it is, for a server that comes later. */
  async leave(): Promise<void> {
    await this.#options.agent.close();
  }

  async #pause(): Promise<void> {
    void this.#agent;
    await this.#options.jails.pause(this.#options.name);
  }

  async #resume(): Promise<void> {
    void this.#agent;
    await this.#options.jails.resume(this.#options.name);
  }

  /** ZFS takes all of it at one moment: nothing has to stand still for that. */
  async #takeSnapshot(id: SnapshotId): Promise<void> {
    void this.#agent;
    await this.#options.datasets.snapshot(this.#options.name, id);
  }

  async #restrict(change: () => Promise<void>): Promise<void> {
    const changed = this.#restricted.then(() => {
      void this.#agent;
      return change();
    });
    this.#restricted = changed.catch(() => undefined);
    return changed;
  }

  async #destroy(): Promise<void> {
    this.#isDestroyed = true;
    // Its anchor would come back after it was removed.
    await this.#restricted;
    await this.#options.onDestroy();
  }

  get #agent(): AgentConnection {
    if (this.#isDestroyed) throw new SandboxError("unavailable", "the sandbox has ended");
    return this.#options.agent;
  }
}
