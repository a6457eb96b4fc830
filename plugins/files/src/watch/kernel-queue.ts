import { readFileSync } from "node:fs";

/** Of Linux, where nobody has set another one. */
const DEFAULT_LIMIT = 16_384;

/**
 * Counts what the kernel has told this process at once. A kernel that has this much to tell has lost what came after it,
 * and Node says nothing of that.
 */
export class KernelQueue {
  readonly #limit: number;
  readonly #readers = new Set<() => void>();
  #told = 0;

  /** @param limit how much the kernel keeps for a process. */
  constructor(limit = limitOfKernel()) {
    this.#limit = limit;
  }

  /** Runs `onOverflow` whenever something may have been lost; the function returned takes that back. */
  onOverflow(onOverflow: () => void): () => void {
    this.#readers.add(onOverflow);
    return () => this.#readers.delete(onOverflow);
  }

  /** One more piece of news. All that waits in the kernel is told in one turn of the event loop. */
  count(): void {
    if (this.#told === 0) setImmediate(() => (this.#told = 0));
    this.#told++;
    if (this.#told < this.#limit) return;
    for (const onOverflow of this.#readers) onOverflow();
  }
}

function limitOfKernel(): number {
  if (process.platform !== "linux") return Infinity;
  try {
    return Number(readFileSync("/proc/sys/fs/inotify/max_queued_events", "utf8"));
  } catch {
    return DEFAULT_LIMIT;
  }
}
