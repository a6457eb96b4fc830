import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const MIB = 2 ** 20;
const RESET_PEAK = "5";
const NS_PER_MS = 1e6;

/** Time on processors, in the kernel and out of it. */
export interface ProcessorTime {
  /** Of all threads. */
  readonly allMs: number;
  /** Of the one that runs JavaScript: what it takes, the next request waits for. */
  readonly mainMs: number;
}

/** Processor time and memory of a process during a measurement. NaN on systems other than Linux. */
export class WatchedProcess {
  readonly #pid: number;
  readonly #folder: string;
  readonly #askStallMs: (() => Promise<number>) | undefined;

  /** @param askStallMs for the longest time on a processor that one turn of its event loop took since it was asked last. */
  constructor(pid: number, askStallMs?: () => Promise<number>) {
    this.#pid = pid;
    this.#askStallMs = askStallMs;
    this.#folder = `/proc/${pid}`;
  }

  /** So far, of the threads that it has; Node ends none of its own. */
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

  /** The memory that it has now. */
  residentBytes(): number {
    if (process.platform !== "linux") return Number.NaN;
    const [, kib] = /VmRSS:\s+(\d+)/.exec(readFileSync(`${this.#folder}/status`, "latin1")) ?? [];
    return Number(kib) * 1024;
  }

  /** Files, sockets and the like that it has open now. */
  descriptors(): number {
    return process.platform === "linux" ? readdirSync(`${this.#folder}/fd`).length : Number.NaN;
  }

  /** From now on `peakMiB` is of what comes. */
  forgetPeak(): void {
    if (process.platform === "linux") writeFileSync(`${this.#folder}/clear_refs`, RESET_PEAK);
  }

  /** The most memory that it had at a time. */
  peakMiB(): number {
    if (process.platform !== "linux") return Number.NaN;
    const [, kib] = /VmHWM:\s+(\d+)/.exec(readFileSync(`${this.#folder}/status`, "latin1")) ?? [];
    return (Number(kib) * 1024) / MIB;
  }
}
