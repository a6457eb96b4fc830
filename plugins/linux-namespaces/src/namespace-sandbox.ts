import type { Duplex } from "node:stream";
import { join } from "node:path";
import { statfs } from "node:fs/promises";
import { availableParallelism, totalmem } from "node:os";
import type { AgentConnection } from "@coppice/agent";
import { type Logger, messageOf, SandboxError, MEBIBYTE } from "@coppice/core";
import {
  Semaphore,
  sharedUntilFailure,
  type Command,
  type EgressRules,
  type Exit,
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
import type { ControlGroup, GroupUsage } from "./limits/control-groups.js";
import { Shortages } from "./limits/shortages.js";
import type { DiskWatch, Watched, VolumeWatch } from "./limits/disk-watch.js";
import { DiskQuota, filesWithQuota } from "./limits/disk-quota.js";
import { areClosed, checkEgressRules, type Egress } from "./network/egress.js";
import { InsideConnections } from "./network/inside-connections.js";
import type { Opened } from "./open-host.js";
import type { Chain } from "./storage/layer-store.js";
import type { SnapshotStore } from "./storage/snapshot-store.js";
import { ROOT_LAYER } from "./launcher/launch-instructions.js";
import { type SandboxFacts, readInit, writeFacts, type SandboxPaths } from "./launcher/sandbox-record.js";

interface NamespaceSandboxOptions extends Pick<Opened, "egress" | "ids" | "images" | "launcher" | "quotas"> {
  readonly facts: SandboxFacts;
  readonly paths: SandboxPaths;
  readonly group: ControlGroup;
  /** Undefined where the server cannot read files of its sandboxes. */
  readonly snapshots: SnapshotStore | undefined;
  readonly agent: AgentConnection | undefined;
  readonly limitsOf: (limits: Limits) => FullLimits;
  readonly diskScanEntries: number;
  readonly log: Logger;
  /** Ends the sandbox when it exceeds its disk limit; undefined where this is disabled or not needed. */
  readonly diskWatch: DiskWatch | undefined;
  /** Ends the sandbox when a volume of it exceeds its size; undefined as above. */
  readonly volumeWatch: VolumeWatch | undefined;
  /** True while its layers are empty. */
  readonly isNew: boolean;
  /** Restarts the sandbox after its processes have ended; undefined where its files end with them. */
  readonly onRestart:
    | ((spec: SandboxSpec, before: SandboxFacts, signal: AbortSignal) => Promise<RestartedSandbox>)
    | undefined;
  readonly onDestroyed: () => Promise<void>;
}

export interface RestartedSandbox {
  readonly facts: SandboxFacts;
  readonly group: ControlGroup;
  readonly agent: AgentConnection;
}

const DISK_MEASURED_EVERY_MS = 10_000;
/** Excess over the disk limit at which a sandbox is ended. Writes over the API are refused earlier, at the limit. */
const DISK_TOLERANCE = 1 / 16;
const EVERY_ENTRY = 2 ** 32 - 1;

/** A sandbox whose first process is an agent with a connection to this server. */
export class NamespaceSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly stopping?: NonNullable<Sandbox["stopping"]>;
  readonly pausing?: { pause(): Promise<void>; resume(): Promise<void> };
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
  readonly snapshots?: { take(id: SnapshotId): Promise<void> };
  readonly committing?: { commit(id: ImageId): Promise<void> };
  readonly #loss = Promise.withResolvers<Loss>();
  readonly lost = this.#loss.promise;
  readonly shortages: Shortages;
  readonly adoption = {
    processes: async () => (this.#facts.isStopped === true ? [] : this.#agent.processes()),
  };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: NamespaceSandboxOptions;
  readonly #quota: DiskQuota;
  #facts: SandboxFacts;
  #group: ControlGroup;
  #connection: AgentConnection | undefined;
  #inside: InsideConnections;
  #files: Files | undefined;
  /** True while only its files and its record exist. */
  #isHalted = false;
  #transition: AbortController | undefined;
  /** True when its files are those of an image. */
  #isCommitted = false;
  /** Changes to the facts run one after the other. */
  readonly #changes = new Semaphore();
  /** So do those that freeze or thaw it. */
  readonly #freezes = new Semaphore();
  /** Rejects when the server leaves it. */
  readonly #left = Promise.withResolvers<never>();
  #isDestroyed = false;
  #isDetached = false;
  #isPaused = false;
  /** Last measurement, which is true until a process runs: the server, too, changes files by its agent. */
  #known: { readonly clock: string; readonly limits: FullLimits; readonly stats: Stats } | undefined;
  #lastUsage = { atMs: performance.now(), cpuMicros: 0 };
  #isOverDisk = false;
  /** True while its layers are empty. */
  #isNew: boolean;

  constructor(options: NamespaceSandboxOptions) {
    const { facts, group } = options;
    this.id = facts.id;
    this.#left.promise.catch(() => undefined);
    const { agent, diskScanEntries, launcher, onRestart, paths } = options;
    this.#quota = new DiskQuota({
      measure: async () => (await launcher.measure(paths.layers, diskScanEntries)).bytes,
      limitBytes: facts.limits.diskMiB * MEBIBYTE,
      maximumAgeMs: DISK_MEASURED_EVERY_MS,
    });
    this.#options = options;
    this.#facts = facts;
    this.#group = group;
    this.shortages = new Shortages({
      group: () => this.#group,
      limits: () => this.#limits,
      isNew: options.isNew || agent === undefined,
    });
    this.#isNew = options.isNew;
    this.#inside = new InsideConnections(launcher);
    if (agent !== undefined) this.#attach(agent);
    if (onRestart !== undefined) {
      this.stopping = {
        stop: () => this.#changes.run(() => this.#stop()),
        start: (spec, signal) => this.#changes.run(() => this.#begin(spec, signal, onRestart)),
      };
    }
    if (group.canFreeze) this.pausing = { pause: () => this.#pause(), resume: () => this.#resume() };
    // A snapshot without a freezer would not be atomic; layers in memory are out of reach from here.
    const { egress, snapshots } = options;
    if (snapshots !== undefined && group.canFreeze && facts.memoryLayersMiB === undefined)
      this.snapshots = { take: (id) => this.#takeSnapshot(snapshots, id) };
    // An image does not depend on snapshots.
    const { images, memoryLayersMiB, snapshots: chain = [] } = facts;
    if (images !== undefined && memoryLayersMiB === undefined && chain.length === 0)
      this.committing = { commit: (id) => this.#changes.run(() => this.#commit(id, images)) };
    if (group.canLimit) this.resizing = { resize: (limits) => this.#changes.run(() => this.#resize(limits)) };
    if (egress !== undefined)
      this.networking = { restrict: (rules) => this.#changes.run(() => this.#restrict(egress, rules)) };
  }

  get files(): Files {
    if (this.#files === undefined) throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
    return this.#files;
  }

  async spawn(command: Command): Promise<Process> {
    const { workdir } = this.#facts;
    const cwd = command.cwd ?? workdir;
    return this.#agent.spawn({ ...command, cwd, env: { ...this.#threads(), ...command.env } });
  }

  async user(name?: string): Promise<User> {
    const user = await this.#agent.user(name);
    const { workdir } = this.#facts;
    return workdir === undefined ? user : { ...user, workdir };
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    void this.#agent;
    const [inside, init] = [this.#inside, await readInit(this.#options.paths)];
    if (init === undefined) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    return inside.dial(init, port, signal);
  }

  async stats(): Promise<Stats> {
    const group = this.#group;
    this.#requireAlive();
    const limits = this.#limits;
    const clock = group.recentClock;
    const known = this.#known;
    if (known !== undefined && clock === known.clock && limits === known.limits) {
      this.#lastUsage = { ...this.#lastUsage, atMs: performance.now() };
      this.#quota.confirm();
      return { ...known.stats, cpuUsedPercent: 0 };
    }
    const usage = await group.usage();
    this.shortages.look();
    const hasMemoryLimit = group.record["memory"] !== undefined;
    const memoryTotalBytes = hasMemoryLimit ? Math.min(limits.memoryMiB * MEBIBYTE, totalmem()) : totalmem();
    const disk = await this.#disk();
    const stats = {
      cpuCount: limits.cpuCount,
      cpuUsedPercent: this.#cpuSinceLast(usage),
      memoryUsedBytes: Math.min(usage.memoryBytes ?? 0, memoryTotalBytes),
      memoryTotalBytes,
      memoryCacheBytes: usage.memoryCacheBytes ?? 0,
      ...disk,
    };
    this.#known = clock === undefined ? undefined : { clock, limits, stats };
    return stats;
  }

  get cpuSeconds(): number | undefined {
    return this.#group.cpuSeconds;
  }

  /** Disconnects; the sandbox keeps running for a later server. */
  async detach(): Promise<void> {
    this.#isDetached = true;
    this.#left.reject(new SandboxError("server_stopped", "the server stops"));
    // Nobody would thaw it before the next server.
    await this.#freezes.run(() => undefined);
    await this.#connection?.close();
  }

  async #destroy(): Promise<void> {
    const { egress, ids, launcher, paths, quotas, onDestroyed } = this.#options;
    this.#isDestroyed = true;
    // An operation that began now would outlive the sandbox.
    this.#transition?.abort(new SandboxError("sandbox_ended", "the sandbox has ended"));
    if (this.#transition !== undefined) await this.#changes.run(() => undefined);
    const group = this.#group;
    const init = await readInit(paths);
    if (init !== undefined) await launcher.end(init, group.thawFile);
    // The close of the agent is the error that pending operations get.
    await this.#connection?.closed;
    await this.#changes.run(() => undefined);
    const { firstId, network, project } = this.#facts;
    const disconnected = network === undefined ? undefined : egress?.disconnect(network);
    await Promise.all([group.remove(), disconnected]);
    await launcher.remove(paths.directory);
    // After its record is removed: no two records may name the same network.
    if (network !== undefined) egress?.release(network);
    if (firstId !== undefined) ids?.release(firstId);
    if (project !== undefined) await quotas?.release(project);
    await onDestroyed();
  }

  #attach(agent: AgentConnection): void {
    const { memoryLayersMiB, project } = this.#facts;
    const isHeldByFileSystem = memoryLayersMiB !== undefined || project !== undefined;
    const inside = new InsideConnections(this.#options.launcher);
    this.#connection = agent;
    agent.explain = (exit, sinceMs) => this.#explain(exit, sinceMs);
    this.#known = undefined;
    this.#inside = inside;
    this.#files = isHeldByFileSystem ? agent.files : filesWithQuota(agent.files, this.#quota);
    const watched = isHeldByFileSystem ? undefined : this.#watchDisk();
    const leaveVolumes = this.#options.volumeWatch?.use(this.#facts.watchedVolumes ?? [], {
      id: this.id,
      clock: () => this.#group.clock,
      whileStill: (work) => this.#whileStill(work),
      end: () => this.#endOverDisk(),
    });
    void agent.closed.then(() => {
      inside.close();
      if (watched !== undefined) this.#options.diskWatch?.remove(watched);
      leaveVolumes?.();
      const isExpected = this.#isDestroyed || this.#isDetached || this.#facts.isStopped === true;
      if (!isExpected && this.#connection === agent) this.#loss.resolve(this.#lossReason());
    });
  }

  async #stop(): Promise<void> {
    this.#requireAlive();
    if (this.#isHalted) return;
    this.#transition = new AbortController();
    try {
      // The record is written first. After a crash the next server keeps a sandbox that is recorded as stopped, and
      // removes one whose processes are gone without that record.
      await this.#record({ isStopped: true });
      await this.#endAll();
    } finally {
      this.#transition = undefined;
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

  async #commit(id: ImageId, chain: Chain): Promise<void> {
    this.#requireAlive();
    const { images, paths } = this.#options;
    const { project } = this.#facts;
    this.#transition = new AbortController();
    try {
      // The image takes the project with the files: no later server may give it to another sandbox.
      await this.#record({ isStopped: true, project: undefined });
      await this.#endAll();
      this.#requireAlive();
      await images.commit(id, { layer: join(paths.layers, ROOT_LAYER), chain, project });
      this.#isCommitted = true;
    } catch (error) {
      await this.#record({ project });
      throw error;
    } finally {
      this.#transition = undefined;
    }
  }

  async #begin(
    spec: SandboxSpec,
    signal: AbortSignal,
    onRestart: NonNullable<NamespaceSandboxOptions["onRestart"]>,
  ): Promise<void> {
    this.#requireAlive();
    if (this.#facts.isStopped !== true) return;
    const turning = new AbortController();
    this.#transition = turning;
    try {
      await this.#endAll();
      const begun = await onRestart(spec, this.#facts, AbortSignal.any([signal, turning.signal]));
      this.#isHalted = false;
      this.#group = begun.group;
      this.#facts = begun.facts;
      this.shortages.beginAnew();
      this.#quota.limitBytes = begun.facts.limits.diskMiB * MEBIBYTE;
      await this.#record({ isStopped: undefined });
      this.#attach(begun.agent);
    } finally {
      this.#transition = undefined;
    }
  }

  async #endOverDisk(): Promise<void> {
    if (this.#isDestroyed || this.#isDetached) return;
    this.#isOverDisk = true;
    const init = await readInit(this.#options.paths);
    if (init !== undefined) await this.#options.launcher.end(init, this.#group.thawFile);
  }

  #watchDisk(): Watched {
    const { diskWatch, launcher, log, paths } = this.#options;
    const { id } = this;
    const limitBytes = (): number => this.#quota.limitBytes * (1 + DISK_TOLERANCE);
    // A measurement looks at every file. None has changed where no process has run.
    let last: { readonly clock: string | undefined; readonly usedBytes: number } = {
      clock: undefined,
      usedBytes: 0,
    };
    const watched: Watched = {
      id,
      get limitBytes() {
        return limitBytes();
      },
      measure: async () => {
        const clock = this.#group.clock;
        if (clock !== undefined && clock === last.clock) return last.usedBytes;
        const [group] = this.#group.paths;
        const processes = group === undefined ? undefined : join(group, "cgroup.procs");
        const look = () => launcher.measure(paths.layers, EVERY_ENTRY, processes);
        let { bytes, hasChanged } = await look();
        // Else a program could hide its files by moving them on and on.
        if (hasChanged && bytes <= limitBytes()) ({ bytes, hasChanged } = await this.#whileStill(look));
        last = { clock: hasChanged ? undefined : clock, usedBytes: bytes };
        return bytes;
      },
      end: async (usedBytes) => {
        const usedMiB = Math.round(usedBytes / MEBIBYTE);
        const fields = { sandbox: id, diskMiB: this.#limits.diskMiB, usedMiB };
        log.warn(fields, "sandbox exceeds its disk limit; ending it");
        await this.#endOverDisk();
      },
    };
    diskWatch?.add(watched, this.#isNew);
    this.#isNew = false;
    return watched;
  }

  /** Runs something while no process of the sandbox runs, if they can be frozen. */
  async #whileStill<T>(work: () => Promise<T>): Promise<T> {
    return this.#freezes.run(async () => {
      const group = this.#group;
      const isRunning = group.canFreeze && !this.#isPaused && this.#facts.isStopped !== true;
      const isFrozen =
        isRunning &&
        (await group.freeze().then(
          () => true,
          () => false,
        ));
      try {
        return await Promise.race([work(), this.#left.promise]);
      } finally {
        if (isFrozen && !this.#isDestroyed) {
          await group.thaw().catch((error: unknown) => {
            this.#options.log.warn({ sandbox: this.id, reason: messageOf(error) }, "sandbox was not thawed");
          });
        }
      }
    });
  }

  async #pause(): Promise<void> {
    void this.#agent;
    await this.#freezes.run(async () => {
      await this.#group.freeze();
      this.#isPaused = true;
    });
  }

  async #resume(): Promise<void> {
    void this.#agent;
    await this.#freezes.run(async () => {
      await this.#group.thaw();
      this.#isPaused = false;
    });
  }

  async #takeSnapshot(snapshots: SnapshotStore, id: SnapshotId): Promise<void> {
    await this.#freezes.run(async () => {
      this.#requireAlive();
      const { paths } = this.#options;
      const group = this.#group;
      const { images = [], isStopped, snapshots: chain = [], template } = this.#facts;
      const isFrozen = this.#isPaused || isStopped === true;
      if (!isFrozen) await group.freeze();
      using _image = this.#options.images.hold(images[0]);
      try {
        await snapshots.keep(id, { layers: paths.layers, template, images, chain });
      } finally {
        if (!isFrozen && !this.#isDestroyed) await group.thaw();
      }
    });
  }

  /** @throws SandboxError failed_precondition when usage exceeds the new limits, or files are in memory. */
  async #resize(limits: Limits): Promise<void> {
    void this.#agent;
    const { limitsOf, quotas } = this.#options;
    const facts = this.#facts;
    const group = this.#group;
    const before = this.#limits;
    const wanted = limitsOf(limits);
    if (facts.memoryLayersMiB !== undefined && wanted.diskMiB !== before.diskMiB)
      throw new SandboxError("resizing_unsupported", "a disk in memory cannot be resized");
    await this.#requireRoomIn(wanted);
    try {
      await group.limit(wanted);
      if (facts.project !== undefined) await quotas?.limit(facts.project, wanted.diskMiB);
    } catch (error) {
      await group.limit(before).catch((failure: unknown) => {
        this.#options.log.error(
          { sandbox: this.id, err: failure },
          "limits of the sandbox were changed in part",
        );
      });
      throw error;
    }
    this.#quota.limitBytes = wanted.diskMiB * MEBIBYTE;
    await this.#record({ limits: wanted });
  }

  /** To reduce memory, the kernel would kill processes; a smaller disk it would not enforce at all. */
  async #requireRoomIn({ memoryMiB, diskMiB }: FullLimits): Promise<void> {
    const { memoryBytes = 0, memoryCacheBytes = 0 } = await this.#group.usage();
    if (memoryBytes - memoryCacheBytes > memoryMiB * MEBIBYTE)
      throw new SandboxError("limits_below_use", "the sandbox uses more memory than that");
    const { diskUsedBytes } = await this.#disk();
    if (diskMiB < this.#limits.diskMiB && diskUsedBytes > diskMiB * MEBIBYTE)
      throw new SandboxError("limits_below_use", "the sandbox uses more disk than that");
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

  async #connect(egress: Egress, rules: EgressRules): Promise<void> {
    const init = await readInit(this.#options.paths);
    if (init === undefined) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    const network = egress.take();
    try {
      // First, so that a server that ends halfway leaves a record of what to remove.
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
    // Files in memory are visible only in its own namespace.
    const init = await readInit(paths);
    const { blocks, bavail, bsize } = await statfs(`/proc/${init?.pid ?? 0}/root/`);
    return { diskUsedBytes: (blocks - bavail) * bsize, diskTotalBytes: blocks * bsize };
  }

  /**
   * Variable that tells nproc(1), OpenMP and libraries for numbers how many processors the limit is worth: they count
   * those that they may run on. To let it run on fewer ones alone would leave others idle that have nothing to do.
   */
  #threads(): Readonly<Record<string, string>> {
    const count = Math.max(1, Math.ceil(this.#limits.cpuCount));
    return this.#group.canLimit && count < availableParallelism() ? { OMP_NUM_THREADS: String(count) } : {};
  }

  #cpuSinceLast({ cpuMicros = 0 }: GroupUsage): number {
    const last = this.#lastUsage;
    this.#lastUsage = { atMs: performance.now(), cpuMicros };
    const elapsedMicros = (this.#lastUsage.atMs - last.atMs) * 1_000;
    if (elapsedMicros <= 0) return 0;
    const most = 100 * Math.min(this.#limits.cpuCount, availableParallelism());
    return Math.min(most, Math.max(0, (100 * (cpuMicros - last.cpuMicros)) / elapsedMicros));
  }

  /** An end that nobody saw is that of the whole sandbox, and one by another signal that of who sent it. */
  #explain(exit: Exit, sinceMs: number): Exit {
    const isOwn = exit.signal === undefined ? exit.code === 0 : exit.signal !== "SIGKILL" || exit.isAssumed;
    if (isOwn || this.#isDestroyed) return exit;
    const shortage = this.shortages.since(sinceMs);
    return shortage === undefined ? exit : { ...exit, shortage };
  }

  /**
   * Returns the reason for the loss of the sandbox. The kernel counts the processes that it killed for lack of memory,
   * but does not name them. A kill that this server has not seen yet is assumed to have ended the first process,
   * because no program in the sandbox can kill that one.
   */
  #lossReason(): Loss {
    if (this.#isOverDisk) return "out of disk";
    return this.shortages.look() ? "out of memory" : "backend lost";
  }

  get #agent(): AgentConnection {
    this.#requireAlive();
    if (this.#facts.isStopped === true || this.#connection === undefined)
      throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
    return this.#connection;
  }

  #requireAlive(): void {
    const isOver = this.#isDestroyed || this.#isCommitted;
    if (isOver) throw new SandboxError("sandbox_ended", "the sandbox has ended");
  }
}
