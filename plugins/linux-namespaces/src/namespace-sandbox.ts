import type { Duplex } from "node:stream";
import { join } from "node:path";
import { statfs } from "node:fs/promises";
import { availableParallelism, totalmem } from "node:os";
import type { AgentConnection } from "@coppice/agent";
import { SandboxError, type Logger } from "@coppice/core";
import {
  sharedUntilFailure,
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
import type { ControlGroup, GroupUsage } from "./limits/control-groups.js";
import type { DiskWatch, Watched } from "./limits/disk-watch.js";
import { DiskQuota, filesWithQuota } from "./limits/disk-quota.js";
import { areClosed, checkEgressRules, type Egress } from "./network/egress.js";
import type { SandboxPaths } from "./launcher/launch-instructions.js";
import type { IdRanges } from "./limits/id-ranges.js";
import type { Launcher } from "./launcher/launcher.js";
import type { ProjectQuotas } from "./limits/project-quotas.js";
import type { SnapshotStore } from "./storage/snapshot-store.js";
import { type SandboxFacts, readInit, writeFacts } from "./storage/sandbox-record.js";

export interface NamespaceSandboxOptions {
  readonly facts: SandboxFacts;
  readonly paths: SandboxPaths;
  readonly group: ControlGroup;
  readonly launcher: Launcher;
  /** Undefined where the server may not read what its sandboxes own. */
  readonly snapshots: SnapshotStore | undefined;
  /** Undefined of one that is stopped. */
  readonly agent: AgentConnection | undefined;
  /** Undefined where the file system does not count what a sandbox uses. */
  readonly quotas: ProjectQuotas | undefined;
  /** Undefined where sandboxes have no ids of their own. */
  readonly ids: IdRanges | undefined;
  /** Fills limits up with the backend's defaults. */
  readonly limitsOf: (limits: Limits) => FullLimits;
  readonly diskScanEntries: number;
  /** Processes of it that the kernel has ended for want of memory before this server had it. */
  readonly knownKills: number;
  readonly log: Logger;
  /** Ends it when it exceeds its disk limit; undefined where that is not done, or not needed. */
  readonly diskWatch: DiskWatch | undefined;
  /** Its layers are still empty. */
  readonly isNew: boolean;
  /** Its connection to the host's network; undefined without one. */
  readonly egress: Egress | undefined;
  /** Lets it begin anew after all of it has ended; undefined where its files end with it. */
  readonly onBegin:
    | ((spec: SandboxSpec, before: SandboxFacts, signal: AbortSignal) => Promise<Begun>)
    | undefined;
  readonly onDestroyed: () => Promise<void>;
}

/** A sandbox that has begun anew. */
export interface Begun {
  readonly facts: SandboxFacts;
  readonly group: ControlGroup;
  readonly agent: AgentConnection;
}

const MEBIBYTE = 2 ** 20;
const DISK_MEASURED_EVERY_MS = 10_000;
/** So much more than its limit a sandbox may take up before it is ended: what is refused over the API is refused before. */
const DISK_TOLERANCE = 1 / 16;
const EVERY_ENTRY = 2 ** 32 - 1;

/** A sandbox whose first process is an agent, to which this server is connected. */
export class NamespaceSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly stopping?: NonNullable<Sandbox["stopping"]>;
  readonly pausing?: { pause(): Promise<void>; resume(): Promise<void> };
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
  readonly snapshots?: { take(id: SnapshotId): Promise<void> };
  readonly lost: Promise<Loss>;
  readonly adoption = {
    processes: async () => (this.#facts.isStopped === true ? [] : this.#agent.processes()),
  };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: NamespaceSandboxOptions;
  readonly #quota: DiskQuota;
  readonly #lose: (loss: Loss) => void;
  #facts: SandboxFacts;
  #group: ControlGroup;
  #connection: AgentConnection | undefined;
  #files: Files | undefined;
  /** Nothing of it is there but its files and their record. */
  #isHalted = false;
  /** While it is being stopped, or begins anew. */
  #turning: AbortController | undefined;
  /** Ends with the last of the changes to the facts, which are made one after the other. Never rejects. */
  #changes: Promise<unknown> = Promise.resolve();
  #isDestroyed = false;
  #isLeft = false;
  #isPaused = false;
  #lastUsage: { readonly atMs: number; readonly cpuMicros: number };
  /** Processes that the kernel ended for want of memory, as far as is known. */
  #knownKills: number;
  #isOverDisk = false;
  /** Its layers are still empty. */
  #isNew: boolean;

  constructor(options: NamespaceSandboxOptions) {
    const { facts, group } = options;
    this.id = facts.id;
    const { agent, diskScanEntries, launcher, onBegin, paths } = options;
    this.#quota = new DiskQuota({
      measure: async () => Number(await launcher.disk("measure", paths.layers, diskScanEntries)),
      limitBytes: facts.limits.diskMiB * MEBIBYTE,
      maximumAgeMs: DISK_MEASURED_EVERY_MS,
    });
    this.#options = options;
    this.#facts = facts;
    this.#group = group;
    this.#lastUsage = { atMs: performance.now(), cpuMicros: 0 };
    this.#knownKills = options.knownKills;
    const { promise, resolve } = Promise.withResolvers<Loss>();
    this.lost = promise;
    this.#lose = resolve;
    this.#isNew = options.isNew;
    if (agent !== undefined) this.#attach(agent);
    if (onBegin !== undefined) {
      this.stopping = {
        stop: () => this.#inTurn(() => this.#stop()),
        start: (spec, signal) => this.#inTurn(() => this.#begin(spec, signal, onBegin)),
      };
    }
    if (group.canFreeze) this.pausing = { pause: () => this.#pause(), resume: () => this.#resume() };
    // Without a freezer the files would not be of one moment; in memory they are out of reach from here.
    const { egress, snapshots } = options;
    if (snapshots !== undefined && group.canFreeze && facts.memoryLayersMiB === undefined) {
      this.snapshots = { take: (id) => this.#takeSnapshot(snapshots, id) };
    }
    if (group.canLimit) this.resizing = { resize: (limits) => this.#inTurn(() => this.#resize(limits)) };
    if (egress !== undefined) {
      this.networking = { restrict: (rules) => this.#inTurn(() => this.#restrict(egress, rules)) };
    }
  }

  get files(): Files {
    if (this.#files === undefined) throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
    return this.#files;
  }

  async spawn(command: Command): Promise<Process> {
    const started = await this.#agent.spawn(command);
    void started.exit.then(async ({ signal }) => {
      if (signal === "SIGKILL") await this.#reportMemoryKills();
    });
    return started;
  }

  async user(name?: string): Promise<User> {
    return this.#agent.user(name);
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    return this.#agent.dial(port, signal);
  }

  async stats(): Promise<Stats> {
    const group = this.#group;
    this.#requireLife();
    const limits = this.#limits;
    const usage = await group.usage();
    this.#knownKills = Math.max(this.#knownKills, usage.outOfMemoryKills);
    const hasMemoryLimit = group.record["memory"] !== undefined;
    const memoryTotalBytes = hasMemoryLimit ? Math.min(limits.memoryMiB * MEBIBYTE, totalmem()) : totalmem();
    const disk = await this.#disk();
    return {
      cpuCount: limits.cpuCount,
      cpuUsedPercent: this.#cpuSinceLast(usage),
      memoryUsedBytes: Math.min(usage.memoryBytes ?? 0, memoryTotalBytes),
      memoryTotalBytes,
      memoryCacheBytes: usage.memoryCacheBytes ?? 0,
      ...disk,
    };
  }

  /** Leaves the sandbox as it is, for a server that comes later. */
  async leave(): Promise<void> {
    this.#isLeft = true;
    await this.#connection?.close();
  }

  async #destroy(): Promise<void> {
    const { egress, ids, launcher, paths, quotas, onDestroyed } = this.#options;
    this.#isDestroyed = true;
    // Operations that begin meanwhile would begin after its end.
    this.#turning?.abort(new SandboxError("sandbox_ended", "the sandbox has ended"));
    if (this.#turning !== undefined) await this.#changes;
    const group = this.#group;
    const init = await readInit(paths);
    if (init !== undefined) await launcher.end(init, group.thawFile);
    // Its end is what the operations that are under way are told of.
    await this.#connection?.closed;
    await this.#changes;
    const { firstId, network, project } = this.#facts;
    const disconnected = network === undefined ? undefined : egress?.disconnect(network);
    await Promise.all([group.remove(), disconnected]);
    await launcher.remove(paths.directory);
    // Not before its record is gone: no two of those that are there name the same one.
    if (network !== undefined) egress?.release(network);
    if (firstId !== undefined) ids?.release(firstId);
    if (project !== undefined) await quotas?.release(project);
    await onDestroyed();
  }

  #attach(agent: AgentConnection): void {
    const { memoryLayersMiB, project } = this.#facts;
    const isHeldByFileSystem = memoryLayersMiB !== undefined || project !== undefined;
    this.#connection = agent;
    this.#files = isHeldByFileSystem ? agent.files : filesWithQuota(agent.files, this.#quota);
    const watched = isHeldByFileSystem ? undefined : this.#watchDisk();
    void agent.closed.then(async () => {
      if (watched !== undefined) this.#options.diskWatch?.remove(watched);
      const isMeant = this.#isDestroyed || this.#isLeft || this.#facts.isStopped === true;
      if (!isMeant && this.#connection === agent) this.#lose(await this.#whyLost());
    });
  }

  async #stop(): Promise<void> {
    this.#requireLife();
    if (this.#isHalted) return;
    this.#turning = new AbortController();
    try {
      // Before anything ends: a server that does keeps what it leaves.
      await this.#record({ isStopped: true });
      await this.#endAll();
    } finally {
      this.#turning = undefined;
    }
  }

  async #endAll(): Promise<void> {
    if (this.#isHalted) return;
    const { egress, ids, launcher, paths } = this.#options;
    const init = await readInit(paths);
    if (init !== undefined) await launcher.end(init, this.#group.thawFile);
    await this.#connection?.closed;
    this.#connection = undefined;
    this.#isPaused = false;
    await this.#group.remove();
    const { firstId, network } = this.#facts;
    if (network !== undefined) await egress?.disconnect(network);
    if (firstId !== undefined) {
      await this.#record({ firstId: undefined });
      ids?.release(firstId);
    }
    this.#isHalted = true;
  }

  /** Of one that runs, nothing changes. */
  async #begin(
    spec: SandboxSpec,
    signal: AbortSignal,
    onBegin: NonNullable<NamespaceSandboxOptions["onBegin"]>,
  ): Promise<void> {
    this.#requireLife();
    if (this.#facts.isStopped !== true) return;
    const turning = new AbortController();
    this.#turning = turning;
    try {
      await this.#endAll();
      const begun = await onBegin(spec, this.#facts, AbortSignal.any([signal, turning.signal]));
      this.#isHalted = false;
      this.#group = begun.group;
      this.#facts = begun.facts;
      this.#knownKills = 0;
      this.#quota.limitBytes = begun.facts.limits.diskMiB * MEBIBYTE;
      await this.#record({ isStopped: undefined });
      this.#attach(begun.agent);
    } finally {
      this.#turning = undefined;
    }
  }

  #watchDisk(): Watched {
    const { diskWatch, launcher, log, paths } = this.#options;
    const { id } = this;
    const limitBytes = (): number => this.#quota.limitBytes * (1 + DISK_TOLERANCE);
    const watched: Watched = {
      id,
      get limitBytes() {
        return limitBytes();
      },
      measure: async () => {
        const processes = this.#group.paths.slice(0, 1).map((path) => join(path, "cgroup.procs"));
        return Number(await launcher.disk("measure", paths.layers, EVERY_ENTRY, ...processes));
      },
      end: async (usedBytes) => {
        if (this.#isDestroyed || this.#isLeft) return;
        this.#isOverDisk = true;
        const usedMiB = Math.round(usedBytes / MEBIBYTE);
        const fields = { sandbox: id, diskMiB: this.#limits.diskMiB, usedMiB };
        log.warn(fields, "a sandbox used more disk than its limit and is ended");
        const init = await readInit(paths);
        if (init !== undefined) await launcher.end(init, this.#group.thawFile);
      },
    };
    diskWatch?.add(watched, this.#isNew);
    this.#isNew = false;
    return watched;
  }

  async #pause(): Promise<void> {
    void this.#agent;
    await this.#group.freeze();
    this.#isPaused = true;
  }

  async #resume(): Promise<void> {
    void this.#agent;
    await this.#group.thaw();
    this.#isPaused = false;
  }

  async #takeSnapshot(snapshots: SnapshotStore, id: SnapshotId): Promise<void> {
    this.#requireLife();
    const { paths } = this.#options;
    const group = this.#group;
    const { template, snapshots: chain = [], isStopped } = this.#facts;
    const isFrozen = this.#isPaused || isStopped === true;
    if (!isFrozen) await group.freeze();
    try {
      await snapshots.keep(id, { layers: paths.layers, template, chain });
    } finally {
      if (!isFrozen && !this.#isDestroyed) await group.thaw();
    }
  }

  /** @throws SandboxError failed_precondition when it uses more already, or keeps its files in memory. */
  async #resize(limits: Limits): Promise<void> {
    void this.#agent;
    const { limitsOf, quotas } = this.#options;
    const facts = this.#facts;
    const group = this.#group;
    const before = this.#limits;
    const wanted = limitsOf(limits);
    if (facts.memoryLayersMiB !== undefined && wanted.diskMiB !== before.diskMiB) {
      throw new SandboxError("resizing_unsupported", "a disk in memory cannot be resized");
    }
    await this.#requireRoomIn(wanted);
    try {
      await group.limit(wanted);
      if (facts.project !== undefined) await quotas?.limit(facts.project, wanted.diskMiB);
    } catch (error) {
      await group.limit(before).catch((failure: unknown) => {
        this.#options.log.error(
          { sandbox: this.id, err: failure },
          "a sandbox is left with limits half changed",
        );
      });
      throw error;
    }
    this.#quota.limitBytes = wanted.diskMiB * MEBIBYTE;
    await this.#record({ limits: wanted });
  }

  /** The kernel would make room for less memory by killing processes, for less disk not at all. */
  async #requireRoomIn({ memoryMiB, diskMiB }: FullLimits): Promise<void> {
    const { memoryBytes = 0, memoryCacheBytes = 0 } = await this.#group.usage();
    if (memoryBytes - memoryCacheBytes > memoryMiB * MEBIBYTE) {
      throw new SandboxError("limits_below_use", "the sandbox uses more memory than that");
    }
    const { diskUsedBytes } = await this.#disk();
    if (diskMiB < this.#limits.diskMiB && diskUsedBytes > diskMiB * MEBIBYTE) {
      throw new SandboxError("limits_below_use", "the sandbox uses more disk than that");
    }
  }

  /** @throws SandboxError invalid_argument */
  async #restrict(egress: Egress, rules: EgressRules): Promise<void> {
    void this.#agent;
    checkEgressRules(rules);
    const { network } = this.#facts;
    if (network !== undefined) {
      await this.#record({ isRestricted: true });
      await egress.restrict(network, rules);
    } else if (!areClosed(rules)) {
      await this.#connect(egress, rules);
    }
  }

  /** Gives a sandbox that was made without one a network. */
  async #connect(egress: Egress, rules: EgressRules): Promise<void> {
    const init = await readInit(this.#options.paths);
    if (init === undefined) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    const network = egress.take();
    try {
      // Before anything is made: a server that ends in between leaves word of what to remove.
      await this.#record({ network, isRestricted: true });
      await egress.restrict(network, rules);
      await egress.connect(init, network);
    } catch (error) {
      await egress.disconnect(network);
      await this.#record({ network: undefined });
      egress.release(network);
      throw error;
    }
  }

  async #inTurn<T>(change: () => Promise<T>): Promise<T> {
    const changed = this.#changes.then(change);
    this.#changes = changed.catch(() => undefined);
    return changed;
  }

  /** Writes down, for a server that takes it over, what is different about it. */
  async #record(changes: Partial<SandboxFacts>): Promise<void> {
    this.#facts = { ...this.#facts, ...changes };
    await writeFacts(this.#options.paths, this.#facts);
  }

  get #limits(): FullLimits {
    return this.#facts.limits;
  }

  async #disk(): Promise<Pick<Stats, "diskUsedBytes" | "diskTotalBytes">> {
    const { paths, quotas } = this.#options;
    const facts = this.#facts;
    const total = this.#limits.diskMiB * MEBIBYTE;
    if (facts.memoryLayersMiB === undefined) {
      const counted = facts.project === undefined ? undefined : await quotas?.usage(facts.project);
      const used = counted ?? (await this.#quota.measure());
      return { diskUsedBytes: Math.min(used, total), diskTotalBytes: total };
    }
    // Only its own namespace shows what it keeps in memory.
    const init = await readInit(paths);
    const { blocks, bavail, bsize } = await statfs(`/proc/${init?.pid ?? 0}/root/`);
    return { diskUsedBytes: (blocks - bavail) * bsize, diskTotalBytes: blocks * bsize };
  }

  #cpuSinceLast({ cpuMicros = 0 }: GroupUsage): number {
    const last = this.#lastUsage;
    this.#lastUsage = { atMs: performance.now(), cpuMicros };
    const elapsedMicros = (this.#lastUsage.atMs - last.atMs) * 1_000;
    if (elapsedMicros <= 0) return 0;
    const most = 100 * Math.min(this.#limits.cpuCount, availableParallelism());
    return Math.min(most, Math.max(0, (100 * (cpuMicros - last.cpuMicros)) / elapsedMicros));
  }

  async #reportMemoryKills(): Promise<void> {
    if (this.#isDestroyed) return;
    const { outOfMemoryKills } = await this.#group.usage();
    if (outOfMemoryKills <= this.#knownKills) return;
    this.#knownKills = outOfMemoryKills;
    const fields = { sandbox: this.id, memoryMiB: this.#limits.memoryMiB, kills: outOfMemoryKills };
    this.#options.log.warn(fields, "a sandbox reached its memory limit and a process in it was killed");
  }

  /**
   * The kernel says how many processes it ended, not which. One more than was known when the first process ended is
   * taken for that one; nothing inside could have killed it.
   */
  async #whyLost(): Promise<Loss> {
    if (this.#isOverDisk) return "out of disk";
    const { outOfMemoryKills } = await this.#group.usage();
    return outOfMemoryKills > this.#knownKills ? "out of memory" : "backend lost";
  }

  get #agent(): AgentConnection {
    this.#requireLife();
    if (this.#facts.isStopped === true || this.#connection === undefined) {
      throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
    }
    return this.#connection;
  }

  #requireLife(): void {
    if (this.#isDestroyed) throw new SandboxError("sandbox_ended", "the sandbox has ended");
  }
}
