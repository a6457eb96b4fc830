import type { Clock } from "./clock.js";
import { messageOf } from "./errors.js";
import { runAs } from "./owner.js";
import { within } from "./time.js";

export interface CleanupFailure {
  readonly owner: string;
  readonly message: string;
  readonly error: unknown;
}

/**
 * Undo steps, run last in, first out, one at a time. A step that throws or overruns its deadline is noted and the rest
 * still run.
 */
export class Cleanup {
  readonly #steps: { readonly owner: string; readonly run: () => unknown }[] = [];
  #running: Promise<readonly CleanupFailure[]> | undefined;

  push(owner: string, run: () => unknown): void {
    this.#steps.push({ owner, run });
  }

  /** Runs every step once; a second call waits for the first. @param deadlineMs for each step. */
  run(clock: Clock, deadlineMs: number): Promise<readonly CleanupFailure[]> {
    return (this.#running ??= this.#unwind(clock, deadlineMs));
  }

  async #unwind(clock: Clock, deadlineMs: number): Promise<readonly CleanupFailure[]> {
    const failures: CleanupFailure[] = [];
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      try {
        await within(() => runAs(step.owner, step.run), { clock, timeoutMs: deadlineMs, keepAlive: true });
      } catch (error) {
        failures.push({ owner: step.owner, message: messageOf(error), error });
      }
    }
    return failures;
  }
}
