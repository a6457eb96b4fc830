import { readFileSync, writeFileSync } from "node:fs";

const MIB = 2 ** 20;
/** USER_HZ, which Linux has fixed for programs. */
const MS_PER_TICK = 10;
const RESET_PEAK = "5";

/** What a process costs while something is measured. Linux tells; elsewhere everything is NaN. */
export class WatchedProcess {
  readonly #folder: string;

  constructor(pid: number) {
    this.#folder = `/proc/${pid}`;
  }

  /** Time on processors so far, of all its threads, in the kernel and out of it. */
  cpuMs(): number {
    if (process.platform !== "linux") return Number.NaN;
    const stat = readFileSync(`${this.#folder}/stat`, "latin1");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK;
  }

  /** The memory that it has now. */
  residentBytes(): number {
    if (process.platform !== "linux") return Number.NaN;
    const [, kib] = /VmRSS:\s+(\d+)/.exec(readFileSync(`${this.#folder}/status`, "latin1")) ?? [];
    return Number(kib) * 1024;
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
