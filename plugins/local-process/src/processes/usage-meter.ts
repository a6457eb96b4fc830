import { lstat, readFile, readdir, statfs } from "node:fs/promises";
import { availableParallelism, totalmem } from "node:os";
import { join } from "node:path";
import type { Stats } from "@coppice/core/backend";
import { findProcesses, ps } from "./host-processes.js";

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

/** Sums the resource usage of one sandbox's processes and files. */
export class UsageMeter {
  readonly #root: string;
  readonly #diskScanEntries: number;
  #last: Sample = { atMs: performance.now(), cpuSeconds: new Map() };

  /** @param diskScanEntries maximum of files scanned; the result is a lower bound for a larger sandbox. */
  constructor(root: string, diskScanEntries: number) {
    this.#root = root;
    this.#diskScanEntries = diskScanEntries;
  }

  /** CPU usage is the average since the last call, or since the creation. */
  async measure(): Promise<Stats> {
    const cpuSeconds = new Map<number, number>();
    let memoryUsedBytes = 0;
    for (const [pid, usage] of await usageOf(await findProcesses(this.#root))) {
      cpuSeconds.set(pid, usage.cpuSeconds);
      memoryUsedBytes += usage.memoryBytes;
    }
    const disk = await statfs(this.#root);
    return {
      cpuCount: availableParallelism(),
      cpuUsedPercent: this.#cpuSinceLast({ atMs: performance.now(), cpuSeconds }),
      memoryUsedBytes,
      memoryTotalBytes: totalmem(),
      memoryCacheBytes: 0,
      diskUsedBytes: await this.#diskUsed(),
      diskTotalBytes: disk.blocks * disk.bsize,
    };
  }

  #cpuSinceLast(sample: Sample): number {
    const last = this.#last;
    this.#last = sample;
    const elapsedMs = sample.atMs - last.atMs;
    let seconds = 0;
    for (const [pid, used] of sample.cpuSeconds) {
      seconds += Math.max(0, used - (last.cpuSeconds.get(pid) ?? 0));
    }
    if (elapsedMs <= 0) return 0;
    const percent = (seconds * 1_000 * 100) / elapsedMs;
    return Math.min(percent, 100 * availableParallelism());
  }

  async #diskUsed(): Promise<number> {
    const pending = [this.#root];
    let usedBytes = 0;
    for (let left = this.#diskScanEntries; left > 0;) {
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
  const usages = new Map<number, Usage>();
  for (const pid of pids) usages.set(pid, await usageInProc(pid));
  return usages;
}

async function usageInProc(pid: number): Promise<Usage> {
  const [stats, status] = await Promise.all(
    ["stat", "status"].map((name) => readFile(`/proc/${pid}/${name}`, "latin1").catch(() => "")),
  );
  // The program's name is in parentheses and may contain any character; user and system time are 12th and 13th after
  // it.
  const fields = (stats ?? "").slice((stats ?? "").lastIndexOf(")") + 2).split(" ");
  const residentKiB = /^VmRSS:\s+(\d+) kB/m.exec(status ?? "")?.[1];
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
