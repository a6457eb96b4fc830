import { setImmediate as nextTurn } from "node:timers/promises";

/** Longest time that work may hold the event loop. */
const MAX_MS = 3;

/** Yields to other work of this process, for a loop that always has input. */
export class EventLoopYield {
  #sinceMs = performance.now();

  /** A promise when it is time to yield. */
  whenDue(): Promise<void> | undefined {
    return performance.now() - this.#sinceMs < MAX_MS ? undefined : this.#wait();
  }

  async #wait(): Promise<void> {
    await nextTurn();
    this.#sinceMs = performance.now();
  }
}
