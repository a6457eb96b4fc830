import { availableParallelism, totalmem } from "node:os";
import type { Duplex } from "node:stream";
import type { AgentConnection } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import {
  sharedUntilFailure,
  type AdoptedProcess,
  type Command,
  type EgressRules,
  type Files,
  type FullLimits,
  type Limits,
  type Loss,
  type Process,
  type Sandbox,
  type SandboxId,
  type SnapshotId,
  type Stats,
  type User,
} from "@coppice/core/backend";
import type { Datasets } from "./datasets.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Jails } from "./jails.js";
import type { JexecCommands } from "./jexec-commands.js";
import type { UsageSampler } from "./usage-sampler.js";

export interface JailSandboxOptions {
  readonly id: SandboxId;
  /** Of its dataset and jail. */
  readonly name: string;
  readonly limits: FullLimits;
  /** In the jail. */
  readonly agent: AgentConnection;
  /** On the host; absent where commands were never started from there. */
  readonly helper: JexecCommands | undefined;
  /** What starts commands from now on; the other may have some that still run. */
  readonly commands: JailSettings["commands"];
  readonly datasets: Datasets;
  readonly jails: Jails;
  /** Replaces what it may reach outside; absent where sandboxes are not connected. */
  readonly onRestrict: ((rules: EgressRules) => Promise<void>) | undefined;
  readonly usage: UsageSampler;
  /**
   * Holds it to other limits, and keeps them for a later server. Absent where there is nothing to hold it by.
   * @returns what they are with the defaults. @throws SandboxError failed_precondition
   */
  readonly onResize: ((limits: Limits, before: FullLimits) => Promise<FullLimits>) | undefined;
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
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly lost: Promise<Loss>;
  readonly adoption = { processes: () => this.#processes() };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: JailSandboxOptions;
  #isDestroyed = false;
  #isLeft = false;
  #limits: FullLimits;
  /** Ends with the last of the changes to it, which are made one after the other. Never rejects. */
  #changes: Promise<unknown> = Promise.resolve();

  constructor(options: JailSandboxOptions) {
    const { onResize, onRestrict } = options;
    this.#limits = options.limits;
    if (onResize !== undefined) {
      this.resizing = { resize: (limits) => this.#inTurn(() => this.#resize(limits, onResize)) };
    }
    this.id = options.id;
    this.files = options.agent.files;
    this.#options = options;
    const { promise, resolve } = Promise.withResolvers<Loss>();
    this.lost = promise;
    // With the jail its agent ends; and without an agent, or the helper, not all that is in it can be reached.
    const ends = [options.agent.closed, ...(options.helper === undefined ? [] : [options.helper.closed])];
    void Promise.race(ends).then(() => {
      if (!this.#isDestroyed && !this.#isLeft) resolve("backend lost");
    });
    if (onRestrict !== undefined) {
      this.networking = { restrict: (rules) => this.#inTurn(() => onRestrict(rules)) };
    }
  }

  async spawn(command: Command): Promise<Process> {
    const { commands, helper } = this.#options;
    await helper?.ready();
    if (commands === "agent" || helper === undefined) return this.#agent.spawn(command);
    do {
      await helper.ready();
      // One whose agent is gone is lost: nothing begins in it, though the helper could still start it.
      await this.#agent.user();
      // A pause that began meanwhile waits for what the helper was told before, not for this.
    } while (helper.isHeld);
    return helper.spawn(command);
  }

  async user(name?: string): Promise<User> {
    return this.#agent.user(name);
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    return this.#agent.dial(port, signal);
  }

  async stats(): Promise<Stats> {
    void this.#agent;
    const { usage, name } = this.#options;
    const used = await usage.of(name);
    if (used === undefined) throw new SandboxError("unavailable", "the sandbox has ended");
    const { cpuCount, diskMiB, memoryMiB } = this.#limits;
    const diskTotalBytes = diskMiB * MEBIBYTE;
    const memoryTotalBytes = Math.min(memoryMiB * MEBIBYTE, totalmem());
    return {
      cpuCount,
      cpuUsedPercent: Math.min(used.cpuPercent, 100 * Math.min(cpuCount, availableParallelism())),
      memoryUsedBytes: Math.min(used.memoryBytes, memoryTotalBytes),
      memoryTotalBytes,
      memoryCacheBytes: 0,
      diskUsedBytes: Math.min(used.diskBytes, diskTotalBytes),
      diskTotalBytes,
    };
  }

  /** Of its dataset and jail. */
  get name(): string {
    return this.#options.name;
  }

  /** Leaves the sandbox as it is, for a server that comes later. */
  async leave(): Promise<void> {
    this.#isLeft = true;
    const { agent, helper } = this.#options;
    await Promise.all([agent.close(), helper?.close()]);
  }

  async #pause(): Promise<void> {
    void this.#agent;
    const { helper, jails, name } = this.#options;
    await helper?.hold();
    try {
      await jails.pause(name);
    } catch (error) {
      helper?.release();
      throw error;
    }
  }

  async #resume(): Promise<void> {
    void this.#agent;
    const { helper, jails, name } = this.#options;
    await jails.resume(name);
    helper?.release();
  }

  async #processes(): Promise<readonly AdoptedProcess[]> {
    const { helper } = this.#options;
    return [...(await this.#agent.processes()), ...((await helper?.processes()) ?? [])];
  }

  /** ZFS takes all of it at one moment: nothing has to stand still for that. */
  async #takeSnapshot(id: SnapshotId): Promise<void> {
    void this.#agent;
    await this.#options.datasets.snapshot(this.#options.name, id);
  }

  async #resize(limits: Limits, onResize: NonNullable<JailSandboxOptions["onResize"]>): Promise<void> {
    this.#limits = await onResize(limits, this.#limits);
  }

  async #inTurn(change: () => Promise<void>): Promise<void> {
    const changed = this.#changes.then(() => {
      void this.#agent;
      return change();
    });
    this.#changes = changed.catch(() => undefined);
    return changed;
  }

  async #destroy(): Promise<void> {
    this.#isDestroyed = true;
    this.#options.helper?.release();
    // Its anchor and its rules would come back after they were removed.
    await this.#changes;
    await this.#options.onDestroy();
  }

  get #agent(): AgentConnection {
    if (this.#isDestroyed) throw new SandboxError("unavailable", "the sandbox has ended");
    return this.#options.agent;
  }
}
