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
  type SandboxSpec,
  type SnapshotId,
  type Stats,
  type User,
} from "@coppice/core/backend";
import type { Datasets } from "./zfs/datasets.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { Jails } from "./jails/jails.js";
import type { JexecCommands } from "./jails/jexec-commands.js";
import type { SandboxLink } from "./sandbox-link.js";
import type { UsageSampler } from "./zfs/usage-sampler.js";

/** A jail that runs, and what this server speaks to it by. */
export interface RunningJail {
  /** In the jail. */
  readonly agent: AgentConnection;
  /** On the host; absent where commands were never started from there. */
  readonly helper: JexecCommands | undefined;
  /** Absent where sandboxes are not connected. */
  readonly link: SandboxLink | undefined;
}

export interface JailSandboxOptions {
  readonly id: SandboxId;
  /** Of its dataset and jail. */
  readonly name: string;
  readonly limits: FullLimits;
  /** Undefined for a sandbox that is stopped. */
  readonly jail: RunningJail | undefined;
  /** True when its connections can be restricted. */
  readonly hasNetworks: boolean;
  /** Starts commands from now on; the other one may have some that still run. */
  readonly commands: JailSettings["commands"];
  readonly datasets: Datasets;
  readonly jails: Jails;
  readonly usage: UsageSampler;
  /**
   * Holds it to other limits, and keeps them for a later server. Absent where there is nothing to hold it by.
   * @returns what they are with the defaults. @throws SandboxError failed_precondition
   */
  readonly onResize: ((limits: Limits, before: FullLimits) => Promise<FullLimits>) | undefined;
  /** Ends all of it but its dataset and the lease of its address, from every half-built state. */
  readonly onStop: (agent: AgentConnection | undefined) => Promise<void>;
  /** Makes a jail around its dataset, or leaves none. */
  readonly onStart: (
    spec: SandboxSpec,
    signal: AbortSignal,
  ) => Promise<{ readonly jail: RunningJail; readonly limits: FullLimits }>;
  /** Ends all of it and frees everything. */
  readonly onDestroy: (agent: AgentConnection | undefined) => Promise<void>;
}

const MEBIBYTE = 2 ** 20;

/** A dataset, and unless it is stopped a jail with an agent in it to which this server is connected. */
export class JailSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly pausing = { pause: () => this.#pause(), resume: () => this.#resume() };
  readonly stopping = {
    stop: () => this.#inTurn(() => this.#stop()),
    start: (spec: SandboxSpec, signal: AbortSignal) => this.#inTurn(() => this.#start(spec, signal)),
  };
  readonly snapshots = { take: (id: SnapshotId) => this.#takeSnapshot(id) };
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly lost: Promise<Loss>;
  readonly adoption = { processes: () => this.#processes() };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: JailSandboxOptions;
  readonly #lose: (loss: Loss) => void;
  /** Undefined while it is stopped. */
  #jail: RunningJail | undefined;
  /** A stop or a start failed half-way. */
  #hasRest = false;
  /** While a start is under way. */
  #starting: AbortController | undefined;
  #isDestroyed = false;
  #isLeft = false;
  #limits: FullLimits;
  /** Ends with the last of the changes to it, which are made one after the other. Never rejects. */
  #changes: Promise<unknown> = Promise.resolve();

  constructor(options: JailSandboxOptions) {
    const { hasNetworks, jail, onResize } = options;
    this.#limits = options.limits;
    if (onResize !== undefined) {
      this.resizing = { resize: (limits) => this.#inTurn(() => this.#resize(limits, onResize)) };
    }
    this.id = options.id;
    this.#options = options;
    const { promise, resolve } = Promise.withResolvers<Loss>();
    this.lost = promise;
    this.#lose = resolve;
    if (jail !== undefined) this.#attach(jail);
    if (hasNetworks) {
      this.networking = {
        restrict: (rules) => this.#inTurn(async () => this.#running.link?.restrict(rules)),
      };
    }
  }

  get files(): Files {
    // Of one that has ended the agent refuses everything itself.
    if (this.#jail === undefined) throw new SandboxError("unavailable", "the sandbox is stopped");
    return this.#jail.agent.files;
  }

  async spawn(command: Command): Promise<Process> {
    const { commands } = this.#options;
    const { agent, helper } = this.#running;
    await helper?.ready();
    if (commands === "agent" || helper === undefined) return this.#running.agent.spawn(command);
    do {
      await helper.ready();
      // One whose agent is gone is lost: nothing begins in it, though the helper could still start it.
      await agent.user();
      // A pause that began meanwhile waits for what the helper was told before, not for this.
    } while (helper.isHeld);
    return helper.spawn(command);
  }

  async user(name?: string): Promise<User> {
    return this.#running.agent.user(name);
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    return this.#running.agent.dial(port, signal);
  }

  async stats(): Promise<Stats> {
    this.#requireLife();
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
    await Promise.all([this.#jail?.agent.close(), this.#jail?.helper?.close()]);
  }

  async #pause(): Promise<void> {
    const { helper } = this.#running;
    const { jails, name } = this.#options;
    await helper?.hold();
    try {
      await jails.pause(name);
    } catch (error) {
      helper?.release();
      throw error;
    }
  }

  async #resume(): Promise<void> {
    const { helper } = this.#running;
    const { jails, name } = this.#options;
    await jails.resume(name);
    helper?.release();
  }

  async #processes(): Promise<readonly AdoptedProcess[]> {
    if (this.#jail === undefined) return [];
    const { agent, helper } = this.#running;
    return [...(await agent.processes()), ...((await helper?.processes()) ?? [])];
  }

  /** ZFS takes all of it at one moment: nothing has to stand still for that. */
  async #takeSnapshot(id: SnapshotId): Promise<void> {
    this.#requireLife();
    await this.#options.datasets.snapshot(this.#options.name, id);
  }

  async #resize(limits: Limits, onResize: NonNullable<JailSandboxOptions["onResize"]>): Promise<void> {
    void this.#running;
    this.#limits = await onResize(limits, this.#limits);
  }

  #attach(jail: RunningJail): void {
    this.#jail = jail;
    const { agent, helper } = jail;
    // With the jail its agent ends; and without an agent, or the helper, not all that is in it can be reached.
    void Promise.race([agent.closed, ...(helper === undefined ? [] : [helper.closed])]).then(() => {
      if (!this.#isDestroyed && !this.#isLeft && this.#jail === jail) this.#lose("backend lost");
    });
  }

  async #stop(): Promise<void> {
    const jail = this.#jail;
    if (jail === undefined && !this.#hasRest) return;
    const { datasets, name, onStop } = this.#options;
    // Before anything ends: a server that finds less than a jail keeps what there is.
    await datasets.set(name, "state", "stopped");
    this.#hasRest = true;
    this.#jail = undefined;
    jail?.helper?.release();
    await onStop(jail?.agent);
    this.#hasRest = false;
  }

  /** Of one that runs, nothing changes. */
  async #start(spec: SandboxSpec, signal: AbortSignal): Promise<void> {
    if (this.#jail !== undefined) return;
    const starting = new AbortController();
    this.#starting = starting;
    // Where it fails, a stop ends what is left.
    this.#hasRest = true;
    try {
      const { onStart } = this.#options;
      const { jail, limits } = await onStart(spec, AbortSignal.any([signal, starting.signal]));
      this.#hasRest = false;
      this.#limits = limits;
      this.#attach(jail);
    } finally {
      this.#starting = undefined;
    }
  }

  async #inTurn(change: () => Promise<void>): Promise<void> {
    const changed = this.#changes.then(() => {
      this.#requireLife();
      return change();
    });
    this.#changes = changed.catch(() => undefined);
    return changed;
  }

  async #destroy(): Promise<void> {
    this.#isDestroyed = true;
    this.#starting?.abort(new SandboxError("unavailable", "the sandbox has ended"));
    this.#jail?.helper?.release();
    // Its anchor and its rules would come back after they were removed.
    await this.#changes;
    await this.#options.onDestroy(this.#jail?.agent);
  }

  get #running(): RunningJail {
    this.#requireLife();
    if (this.#jail === undefined) throw new SandboxError("unavailable", "the sandbox is stopped");
    return this.#jail;
  }

  #requireLife(): void {
    if (this.#isDestroyed) throw new SandboxError("unavailable", "the sandbox has ended");
  }
}
