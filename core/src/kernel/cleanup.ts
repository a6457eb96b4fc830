import type { Clock } from "./clock.js";
import { messageOf } from "./errors.js";

/** One undo step that failed or did not end in time. */
export interface CleanupFailure {
  readonly owner: string;
  readonly message: string;
  readonly error: unknown;
}

interface Step {
  readonly owner: string;
  readonly run: () => unknown;
}

/**
 * Undo steps, run last in, first out, one at a time. A step that throws or overruns its deadline is
 * noted and the rest still run.
 */
export class Cleanup {
  readonly #steps: Step[] = [];
  #running: Promise<readonly CleanupFailure[]> | undefined;

  push(owner: string, run: () => unknown): void {
    this.#steps.push({ owner, run });
  }

  /** Runs every step once; a second call waits for the first. @param deadlineMs for each step. */
  run(clock: Clock, deadlineMs: number): Promise<readonly CleanupFailure[]> {
    this.#running ??= this.#unwind(clock, deadlineMs);
    return this.#running;
  }

  async #unwind(clock: Clock, deadlineMs: number): Promise<readonly CleanupFailure[]> {
    const failures: CleanupFailure[] = [];
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      try {
        await withDeadline(step.run, clock, deadlineMs);
      } catch (error) {
        failures.push({ owner: step.owner, message: messageOf(error), error });
      }
    }
    return failures;
  }
}

async function withDeadline(run: () => unknown, clock: Clock, deadlineMs: number): Promise<void> {
  const { promise: overrun, reject } = Promise.withResolvers<never>();
  const disarm = clock.after(deadlineMs, () => reject(new Error(`did not end within ${deadlineMs} ms`)));
  // The clock's timers are unref'ed: without something that keeps the loop alive a step that waits
  // for nothing would let the process end in the middle of its clean-up.
  const keepAlive = setInterval(() => undefined, 60_000);
  try {
    await Promise.race([run(), overrun]);
  } finally {
    disarm();
    clearInterval(keepAlive);
  }
}
