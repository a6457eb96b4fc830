import { setImmediate as nextTurn } from "node:timers/promises";

/** How long work may hold the event loop. */
const LONGEST_MS = 3;

/** Lets other work of this process have its turn in between, for a loop that is never short of input. */
export class EventLoopYield {
  #sinceMs = performance.now();

  /** A promise when it is time to wait for the next turn. */
  whenDue(): Promise<void> | undefined {
    return performance.now() - this.#sinceMs < LONGEST_MS ? undefined : this.#wait();
  }

  async #wait(): Promise<void> {
    await nextTurn();
    this.#sinceMs = performance.now();
  }
}
