import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const MIB = 2 ** 20;
const RESET_PEAK = "5";
const NS_PER_MS = 1e6;

/** Processor time, in user and kernel mode. */
export interface ProcessorTime {
  /** Of all threads. */
  readonly allMs: number;
  /** Of the thread that runs JavaScript, for which the next request waits. */
  readonly mainMs: number;
}

/** Processor time and memory of a process during a measurement. NaN on systems other than Linux. */
export class WatchedProcess {
  readonly #pid: number;
  readonly #folder: string;
  readonly #askStallMs: (() => Promise<number>) | undefined;

  /** @param askStallMs returns the longest turn of the event loop since the last call, in processor time. */
  constructor(pid: number, askStallMs?: () => Promise<number>) {
    this.#pid = pid;
    this.#askStallMs = askStallMs;
    this.#folder = `/proc/${pid}`;
  }

  /** Processor time so far, of the threads that exist; Node ends none of its own. */
  processorTime(): ProcessorTime {
    if (process.platform !== "linux") return { allMs: Number.NaN, mainMs: Number.NaN };
    const times = readdirSync(`${this.#folder}/task`).map((thread) => {
      const [ranNs] = readFileSync(`${this.#folder}/task/${thread}/schedstat`, "latin1").split(" ");
      return { isMain: Number(thread) === this.#pid, ranMs: Number(ranNs) / NS_PER_MS };
    });
    return {
      allMs: times.reduce((sum, { ranMs }) => sum + ranMs, 0),
      mainMs: times.find(({ isMain }) => isMain)?.ranMs ?? Number.NaN,
    };
  }

  /** Longest time since the last call that one turn of its event loop ran; NaN where it is not measured. */
  async longestStallMs(): Promise<number> {
    return this.#askStallMs === undefined ? Number.NaN : this.#askStallMs();
  }

  /** Resident memory, in bytes. */
  residentBytes(): number {
    if (process.platform !== "linux") return Number.NaN;
    const [, kib] = /VmRSS:\s+(\d+)/.exec(readFileSync(`${this.#folder}/status`, "latin1")) ?? [];
    return Number(kib) * 1024;
  }

  /** Number of open descriptors. */
  descriptors(): number {
    return process.platform === "linux" ? readdirSync(`${this.#folder}/fd`).length : Number.NaN;
  }

  /** Resets the peak that `peakMiB` reports. */
  forgetPeak(): void {
    if (process.platform === "linux") writeFileSync(`${this.#folder}/clear_refs`, RESET_PEAK);
  }

  /** Peak of the resident memory since the last reset. */
  peakMiB(): number {
    if (process.platform !== "linux") return Number.NaN;
    const [, kib] = /VmHWM:\s+(\d+)/.exec(readFileSync(`${this.#folder}/status`, "latin1")) ?? [];
    return (Number(kib) * 1024) / MIB;
  }
}
