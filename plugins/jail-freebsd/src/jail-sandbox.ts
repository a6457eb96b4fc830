import { availableParallelism, totalmem } from "node:os";
import type { Duplex } from "node:stream";
import type { AgentConnection } from "@coppice/agent";
import { type Logger, SandboxError, MEBIBYTE } from "@coppice/core";
import {
  Semaphore,
  sharedUntilFailure,
  type AdoptedProcess,
  type Command,
  type EgressRules,
  type Files,
  type FullLimits,
  type ImageId,
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
import type { JexecCommands } from "./jails/jexec-helpers.js";
import type { SandboxLink } from "./sandbox-link.js";
import type { ResourceRules } from "./jails/resource-rules.js";
import type { Opened } from "./open-host.js";
import { limitsText } from "./sandbox-root.js";

export interface RunningJail {
  readonly agent: AgentConnection;
  readonly helper: JexecCommands;
  readonly link: SandboxLink | undefined;
}

export interface JailSandboxOptions extends Pick<
  Opened,
  "datasets" | "jails" | "networks" | "rules" | "usage"
> {
  readonly id: SandboxId;
  readonly name: string;
  readonly limits: FullLimits;
  /** Completes limits with the defaults. */
  readonly limitsOf: (limits: Limits) => FullLimits;
  readonly log: Logger;
  /** Directory of its commands; undefined for the home of each user. */
  readonly workdir: string | undefined;
  readonly jail: RunningJail | undefined;
  /** Removes everything but the dataset and the address lease, from any half-built state. */
  readonly onStop: (agent: AgentConnection | undefined) => Promise<void>;
  /** Makes an image of the stopped sandbox. Absent without an image. */
  readonly onCommit: ((id: ImageId) => Promise<void>) | undefined;
  /** Creates a jail on the dataset; leaves none when it fails. */
  readonly onStart: (
    spec: SandboxSpec,
    signal: AbortSignal,
  ) => Promise<{ readonly jail: RunningJail; readonly limits: FullLimits }>;
  readonly onDestroy: (agent: AgentConnection | undefined) => Promise<void>;
}

/** A dataset, plus a jail with a connected agent unless the sandbox is stopped. */
export class JailSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly pausing = { pause: () => this.#pause(), resume: () => this.#resume() };
  readonly stopping = {
    stop: () => this.#inTurn(() => this.#stop()),
    start: (spec: SandboxSpec, signal: AbortSignal) => this.#inTurn(() => this.#start(spec, signal)),
  };
  readonly snapshots = { take: (id: SnapshotId) => this.#takeSnapshot(id) };
  readonly committing?: { commit(id: ImageId): Promise<void> };
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly lost: Promise<Loss>;
  readonly adoption = { processes: () => this.#processes() };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: JailSandboxOptions;
  readonly #lose: (loss: Loss) => void;
  #jail: RunningJail | undefined;
  #hasRemains = false;
  #starting: AbortController | undefined;
  #isDestroyed = false;
  #isCommitted = false;
  #isDetached = false;
  #limits: FullLimits;
  #cpuSeconds: number | undefined;
  /** Changes run one after the other. */
  readonly #changes = new Semaphore();

  constructor(options: JailSandboxOptions) {
    const { jail, networks, onCommit, rules } = options;
    this.#limits = options.limits;
    if (rules !== undefined)
      this.resizing = { resize: (limits) => this.#inTurn(() => this.#resize(limits, rules)) };
    if (onCommit !== undefined)
      this.committing = { commit: (id) => this.#inTurn(() => this.#commit(id, onCommit)) };
    this.id = options.id;
    this.#options = options;
    const { promise, resolve } = Promise.withResolvers<Loss>();
    this.lost = promise;
    this.#lose = resolve;
    if (jail !== undefined) this.#attach(jail);
    if (networks !== undefined) {
      this.networking = {
        restrict: (rules) => this.#inTurn(async () => this.#running.link?.restrict(rules)),
      };
    }
  }

  get files(): Files {
    // After the end of the sandbox, the agent's files refuse every operation.
    if (this.#jail === undefined) throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
    return this.#jail.agent.files;
  }

  async spawn({ ...command }: Command): Promise<Process> {
    const { workdir } = this.#options;
    if (workdir !== undefined) command.cwd ??= workdir;
    const { agent, helper } = this.#running;
    do {
      await helper.ready();
      // A sandbox without an agent is lost: no command starts in it, though the helper could still start one.
      await agent.user();
      // A pause that began meanwhile waits only for commands that the helper already had.
    } while (helper.isHeld);
    return helper.spawn(command);
  }

  async user(name?: string): Promise<User> {
    const user = await this.#running.agent.user(name);
    const { workdir } = this.#options;
    return workdir === undefined ? user : { ...user, workdir };
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    return this.#running.agent.dial(port, signal);
  }

  async stats(): Promise<Stats> {
    this.#requireAlive();
    const { usage, name } = this.#options;
    const used = await usage.of(name);
    if (used === undefined) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    this.#cpuSeconds = used.cpuSeconds;
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

  /** As of the last measurement. */
  get cpuSeconds(): number | undefined {
    return this.#cpuSeconds;
  }

  get name(): string {
    return this.#options.name;
  }

  /** Disconnects; the sandbox keeps running for a later server. */
  async detach(): Promise<void> {
    this.#isDetached = true;
    await Promise.all([this.#jail?.agent.close(), this.#jail?.helper.connection.close()]);
  }

  async #pause(): Promise<void> {
    const { helper } = this.#running;
    const { jails, name } = this.#options;
    await helper.hold();
    try {
      await jails.pause(name);
    } catch (error) {
      helper.release();
      throw error;
    }
  }

  async #resume(): Promise<void> {
    const { helper } = this.#running;
    const { jails, name } = this.#options;
    await jails.resume(name);
    helper.release();
  }

  async #processes(): Promise<readonly AdoptedProcess[]> {
    if (this.#jail === undefined) return [];
    const { agent, helper } = this.#running;
    return [...(await agent.processes()), ...(await helper.connection.processes())];
  }

  /** Atomic in ZFS: no process has to be stopped. */
  async #takeSnapshot(id: SnapshotId): Promise<void> {
    this.#requireAlive();
    await this.#options.datasets.snapshot(this.#options.name, id);
  }

  /** Replaces all limits at once. @throws SandboxError failed_precondition when it uses more. */
  async #resize(limits: Limits, rules: ResourceRules): Promise<void> {
    void this.#running;
    const { datasets, limitsOf, log, name, usage } = this.#options;
    const [before, wanted] = [this.#limits, limitsOf(limits)];
    const { memoryBytes = 0 } = (await usage.of(name)) ?? {};
    if (memoryBytes > wanted.memoryMiB * MEBIBYTE)
      throw new SandboxError("limits_below_use", "the sandbox uses more memory than that");
    try {
      if (wanted.diskMiB !== before.diskMiB) await datasets.limit(name, wanted.diskMiB);
      await rules.set(name, wanted);
      await datasets.set(name, "limits", limitsText(wanted));
    } catch (error) {
      const undone = datasets.limit(name, before.diskMiB).then(() => rules.set(name, before));
      await undone.catch((failure: unknown) => {
        log.error({ sandbox: name, err: failure }, "limits of the sandbox were changed in part");
      });
      throw error;
    }
    this.#limits = wanted;
  }

  #attach(jail: RunningJail): void {
    this.#jail = jail;
    const { agent, helper } = jail;
    // The agent ends with the jail. Without the agent or the helper, parts of the jail are out of reach.
    void Promise.race([agent.closed, helper.connection.closed]).then(() => {
      if (!this.#isDestroyed && !this.#isDetached && this.#jail === jail) this.#lose("backend lost");
    });
  }

  async #stop(): Promise<void> {
    const jail = this.#jail;
    if (jail === undefined && !this.#hasRemains) return;
    const { datasets, name, onStop } = this.#options;
    // First: a server that finds a sandbox in this state keeps it although parts are missing.
    await datasets.set(name, "state", "stopped");
    this.#hasRemains = true;
    this.#jail = undefined;
    jail?.helper.release();
    await onStop(jail?.agent);
    this.#hasRemains = false;
  }

  async #commit(id: ImageId, onCommit: NonNullable<JailSandboxOptions["onCommit"]>): Promise<void> {
    await this.#stop();
    await onCommit(id);
    this.#isCommitted = true;
  }

  async #start(spec: SandboxSpec, signal: AbortSignal): Promise<void> {
    if (this.#jail !== undefined) return;
    const starting = new AbortController();
    this.#starting = starting;
    // After a failure, a stop removes the remains.
    this.#hasRemains = true;
    try {
      const { onStart } = this.#options;
      const { jail, limits } = await onStart(spec, AbortSignal.any([signal, starting.signal]));
      this.#hasRemains = false;
      this.#limits = limits;
      this.#attach(jail);
    } finally {
      this.#starting = undefined;
    }
  }

  #inTurn(change: () => Promise<void>): Promise<void> {
    return this.#changes.run(() => {
      this.#requireAlive();
      return change();
    });
  }

  async #destroy(): Promise<void> {
    this.#isDestroyed = true;
    this.#starting?.abort(new SandboxError("sandbox_ended", "the sandbox has ended"));
    this.#jail?.helper.release();
    // A change that ends later would bring back the anchor and rules.
    await this.#changes.run(() => undefined);
    await this.#options.onDestroy(this.#jail?.agent);
  }

  get #running(): RunningJail {
    this.#requireAlive();
    if (this.#jail === undefined) throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
    return this.#jail;
  }

  #requireAlive(): void {
    if (this.#isDestroyed || this.#isCommitted)
      throw new SandboxError("sandbox_ended", "the sandbox has ended");
  }
}
