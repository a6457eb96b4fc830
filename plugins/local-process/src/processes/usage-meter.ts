import { lstat, readdir, statfs } from "node:fs/promises";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import { readAtOnce, type Stats } from "@coppice/core/backend";
import { ps, type ProcessCensus } from "./host-processes.js";

/** Unit of CPU times in Linux's /proc, independent of the kernel's tick. */
const TICKS_PER_SECOND = 100;
/** Seconds in what ps(1) separates: seconds, minutes, hours, days. */
const UNITS_S = [1, 60, 3_600, 86_400] as const;

interface Usage {
  readonly cpuSeconds: number;
  readonly memoryBytes: number;
}

interface Sample {
  readonly atMs: number;
  readonly cpuSeconds: ReadonlyMap<number, number>;
}

interface UsageMeterOptions {
  readonly root: string;
  /** Maximum of files scanned; the result is a lower bound for a larger sandbox. */
  readonly diskScanEntries: number;
  readonly census: ProcessCensus;
  /** Number of changes that the server has made to its files. */
  readonly changes: () => number;
}

interface Disk extends Pick<Stats, "diskUsedBytes" | "diskTotalBytes"> {
  readonly atMs: number;
  readonly changes: number;
}

/** A process that used little time since the last measurement may have written all the same. */
const MAX_DISK_AGE_MS = 60_000;

/** Sums the resource usage of one sandbox's processes and files. It looks at nothing that cannot have changed. */
export class UsageMeter {
  readonly #options: UsageMeterOptions;
  #startedAtMs: number | undefined;
  #last: Sample = { atMs: performance.now(), cpuSeconds: new Map() };
  #disk: Disk | undefined;
  #cpuSeconds = 0;

  constructor(options: UsageMeterOptions) {
    this.#options = options;
  }

  started(): void {
    this.#startedAtMs = performance.now();
    this.#disk = undefined;
  }

  /** Processor time that the measurements have seen. */
  get cpuSeconds(): number {
    return this.#cpuSeconds;
  }

  /** CPU usage is the average since the last call, or since the creation. */
  async measure(): Promise<Stats> {
    const cpuSeconds = new Map<number, number>();
    let memoryUsedBytes = 0;
    for (const [pid, usage] of await usageOf(await this.#running())) {
      cpuSeconds.set(pid, usage.cpuSeconds);
      memoryUsedBytes += usage.memoryBytes;
    }
    const before = this.#last;
    const hasRun =
      cpuSeconds.size !== before.cpuSeconds.size ||
      [...cpuSeconds].some(([pid, used]) => used !== before.cpuSeconds.get(pid));
    const cpuUsedPercent = this.#cpuSinceLast({ atMs: performance.now(), cpuSeconds });
    const { diskUsedBytes, diskTotalBytes } = await this.#measureDisk(hasRun, cpuSeconds.size > 0);
    return {
      cpuCount: availableParallelism(),
      cpuUsedPercent,
      memoryUsedBytes,
      memoryTotalBytes: totalmem(),
      memoryCacheBytes: 0,
      diskUsedBytes,
      diskTotalBytes,
    };
  }

  async #running(): Promise<readonly number[]> {
    const startedAtMs = this.#startedAtMs;
    if (startedAtMs === undefined) return [];
    const pids = await this.#options.census.of(this.#options.root, startedAtMs);
    // Only a process of the sandbox starts another one unseen.
    if (pids.length === 0 && this.#startedAtMs === startedAtMs) this.#startedAtMs = undefined;
    return pids;
  }

  async #measureDisk(hasRun: boolean, isRunning: boolean): Promise<Disk> {
    const known = this.#disk;
    const changes = this.#options.changes();
    const atMs = performance.now();
    const isOld = isRunning && known !== undefined && atMs - known.atMs > MAX_DISK_AGE_MS;
    if (known !== undefined && !hasRun && !isOld && known.changes === changes) return known;
    const { blocks, bsize } = await statfs(this.#options.root);
    const measured = { atMs, changes, diskUsedBytes: await this.#diskUsed(), diskTotalBytes: blocks * bsize };
    this.#disk = measured;
    return measured;
  }

  #cpuSinceLast(sample: Sample): number {
    const last = this.#last;
    this.#last = sample;
    const elapsedMs = sample.atMs - last.atMs;
    let seconds = 0;
    for (const [pid, used] of sample.cpuSeconds)
      seconds += Math.max(0, used - (last.cpuSeconds.get(pid) ?? 0));
    this.#cpuSeconds += seconds;
    if (elapsedMs <= 0) return 0;
    const percent = (seconds * 1_000 * 100) / elapsedMs;
    return Math.min(percent, 100 * availableParallelism());
  }

  async #diskUsed(): Promise<number> {
    const pending = [this.#options.root];
    let usedBytes = 0;
    for (let left = this.#options.diskScanEntries; left > 0;) {
      const directory = pending.pop();
      if (directory === undefined) break;
      const entries = await readdir(directory, { withFileTypes: true }).catch(() => []);
      for (const entry of entries.slice(0, left)) {
        left--;
        const path = join(directory, entry.name);
        if (entry.isDirectory()) pending.push(path);
        else if (entry.isFile()) usedBytes += (await lstat(path).catch(() => undefined))?.size ?? 0;
      }
    }
    return usedBytes;
  }
}

async function usageOf(pids: readonly number[]): Promise<ReadonlyMap<number, Usage>> {
  if (process.platform !== "linux") return usageByCommand(pids);
  return new Map(pids.map((pid) => [pid, usageInProc(pid)]));
}

function usageInProc(pid: number): Usage {
  const stat = readAtOnce(`/proc/${pid}/stat`) ?? "";
  // The program's name is in parentheses and may contain any character; user and system time are 12th and 13th after
  // it.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const residentKiB = /^VmRSS:\s+(\d+) kB/m.exec(readAtOnce(`/proc/${pid}/status`) ?? "")?.[1];
  return {
    cpuSeconds: (Number(fields[11] ?? 0) + Number(fields[12] ?? 0)) / TICKS_PER_SECOND,
    memoryBytes: Number(residentKiB ?? 0) * 1_024,
  };
}

async function usageByCommand(pids: readonly number[]): Promise<ReadonlyMap<number, Usage>> {
  const usages = new Map<number, Usage>();
  if (pids.length === 0) return usages;
  // It fails when all of them have ended.
  for (const line of await ps(["pid", "rss", "time"], "-p", pids.join(",")).catch(() => [])) {
    const [pid, residentKiB, time] = line.trim().split(/\s+/);
    if (time === undefined) continue;
    const parts = time.split(/[-:]/).toReversed();
    const cpuSeconds = parts.reduce((sum, part, index) => sum + Number(part) * (UNITS_S[index] ?? 0), 0);
    usages.set(Number(pid), { cpuSeconds, memoryBytes: Number(residentKiB) * 1_024 });
  }
  return usages;
}
