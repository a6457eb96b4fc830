import type { Duplex } from "node:stream";
import { statfs } from "node:fs/promises";
import { availableParallelism, totalmem } from "node:os";
import type { AgentConnection } from "@coppice/agent";
import { SandboxError, type Logger } from "@coppice/core";
import type { Command, Files, Limits, Process, Sandbox, SandboxId, Stats, User } from "@coppice/core/backend";
import type { ControlGroup, GroupUsage } from "./control-groups.js";
import { DiskQuota, filesWithQuota } from "./disk-quota.js";
import type { SandboxPaths } from "./launch-instructions.js";
import type { Launcher } from "./launcher.js";
import type { ProjectQuotas } from "./project-quotas.js";
import { type FullLimits, type SandboxFacts, readInit, writeFacts } from "./sandbox-record.js";

export interface NamespaceSandboxOptions {
  readonly facts: SandboxFacts;
  readonly paths: SandboxPaths;
  readonly group: ControlGroup;
  readonly launcher: Launcher;
  readonly agent: AgentConnection;
  /** Undefined where the file system does not count what a sandbox uses. */
  readonly quotas: ProjectQuotas | undefined;
  readonly diskScanEntries: number;
  readonly log: Logger;
  /** Takes away what of the host's network is the sandbox's. */
  readonly disconnect: () => Promise<void>;
  readonly onDestroyed: () => void;
}

const MEBIBYTE = 2 ** 20;
const DISK_MEASURED_EVERY_MS = 10_000;

/** A sandbox whose first process is an agent, to which this server is connected. */
export class NamespaceSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly files: Files;
  readonly pausing?: { pause(): Promise<void>; resume(): Promise<void> };
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly adoption = { processes: async () => this.#agent.processes() };
  readonly #options: NamespaceSandboxOptions;
  readonly #quota: DiskQuota;
  #limits: FullLimits;
  #isDestroyed = false;
  #destroying: Promise<void> | undefined;
  #lastUsage: { readonly atMs: number; readonly cpuMicros: number };
  #reportedKills = 0;

  constructor(options: NamespaceSandboxOptions) {
    const { facts, group } = options;
    this.id = facts.id;
    const { agent, diskScanEntries, launcher, paths } = options;
    this.#quota = new DiskQuota({
      measure: async () => Number(await launcher.disk("measure", paths.layers, diskScanEntries)),
      limitBytes: facts.limits.diskMiB * MEBIBYTE,
      maximumAgeMs: DISK_MEASURED_EVERY_MS,
    });
    const isHeldByFileSystem = facts.memoryLayersMiB !== undefined || facts.project !== undefined;
    this.files = isHeldByFileSystem ? agent.files : filesWithQuota(agent.files, this.#quota);
    this.#options = options;
    this.#limits = facts.limits;
    this.#lastUsage = { atMs: performance.now(), cpuMicros: 0 };
    if (group.canFreeze) this.pausing = { pause: () => this.#pause(), resume: () => this.#resume() };
    if (group.canLimit) this.resizing = { resize: (limits) => this.#resize(limits) };
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
    const { group } = this.#options;
    void this.#agent;
    const limits = this.#limits;
    const usage = await group.usage();
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

  async destroy(): Promise<void> {
    this.#destroying ??= this.#destroy().catch((error: unknown) => {
      // What failed may work the next time.
      this.#destroying = undefined;
      throw error;
    });
    return this.#destroying;
  }

  /** Leaves the sandbox as it is, for a server that comes later. */
  async leave(): Promise<void> {
    await this.#options.agent.close();
  }

  async #destroy(): Promise<void> {
    const { agent, facts, group, launcher, paths, quotas, disconnect, onDestroyed } = this.#options;
    this.#isDestroyed = true;
    const init = await readInit(paths);
    if (init !== undefined) await launcher.end(init, group.thawFile);
    // Its end is what the operations that are under way are told of.
    await agent.closed;
    await Promise.all([group.remove(), disconnect(), launcher.remove(paths.directory)]);
    if (facts.project !== undefined) await quotas?.release(facts.project);
    onDestroyed();
  }

  async #pause(): Promise<void> {
    void this.#agent;
    await this.#options.group.freeze();
  }

  async #resume(): Promise<void> {
    void this.#agent;
    await this.#options.group.thaw();
  }

  /** @throws SandboxError failed_precondition when it uses more already, or keeps its files in memory. */
  async #resize(limits: Limits): Promise<void> {
    void this.#agent;
    const { facts, group, paths, quotas } = this.#options;
    const wanted: FullLimits = {
      cpuCount: limits.cpuCount ?? this.#limits.cpuCount,
      memoryMiB: limits.memoryMiB ?? this.#limits.memoryMiB,
      diskMiB: limits.diskMiB ?? this.#limits.diskMiB,
      processes: limits.processes ?? this.#limits.processes,
    };
    if (facts.memoryLayersMiB !== undefined && wanted.diskMiB !== this.#limits.diskMiB) {
      throw new SandboxError("failed_precondition", "a disk in memory cannot be resized");
    }
    await group.limit(wanted);
    if (facts.project !== undefined) await quotas?.limit(facts.project, wanted.diskMiB);
    this.#quota.limitBytes = wanted.diskMiB * MEBIBYTE;
    this.#limits = wanted;
    // For a server that takes it over.
    await writeFacts(paths, { ...facts, limits: wanted });
  }

  async #disk(): Promise<Pick<Stats, "diskUsedBytes" | "diskTotalBytes">> {
    const { facts, paths, quotas } = this.#options;
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
    const { outOfMemoryKills } = await this.#options.group.usage();
    if (outOfMemoryKills <= this.#reportedKills) return;
    this.#reportedKills = outOfMemoryKills;
    const fields = { sandbox: this.id, memoryMiB: this.#limits.memoryMiB, kills: outOfMemoryKills };
    this.#options.log.warn(fields, "a sandbox reached its memory limit and a process in it was killed");
  }

  get #agent(): AgentConnection {
    if (this.#isDestroyed) throw new SandboxError("unavailable", "the sandbox has ended");
    return this.#options.agent;
  }
}
