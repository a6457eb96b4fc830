import type { Sandbox, Stats } from "../contract/backend.js";

/** What a sandbox uses, as far as somebody has measured it: nothing here measures by itself. */
export class SandboxUse {
  #stats: Stats | undefined;
  /** As the backend told it last. */
  #cpuSeconds: number;
  #uncountedSeconds = 0;

  /** @param cpuSeconds what it had used before this server began to count. */
  constructor(cpuSeconds = 0) {
    this.#cpuSeconds = cpuSeconds;
  }

  /** The last measurement; undefined before the first. */
  get stats(): Stats | undefined {
    return this.#stats;
  }

  /** Call it after a measurement, and before its processes are ended. @param stats undefined where only time was looked at. */
  note({ cpuSeconds }: Pick<Sandbox, "cpuSeconds">, stats?: Stats): void {
    this.#stats = stats ?? this.#stats;
    if (cpuSeconds === undefined) return;
    // Its processes began anew: the kernel counts from zero again.
    const before = cpuSeconds < this.#cpuSeconds ? 0 : this.#cpuSeconds;
    this.#uncountedSeconds += cpuSeconds - before;
    this.#cpuSeconds = cpuSeconds;
  }

  /** Seconds of processor time that no earlier call returned. */
  takeCpuSeconds(): number {
    const seconds = this.#uncountedSeconds;
    this.#uncountedSeconds = 0;
    return seconds;
  }
}
