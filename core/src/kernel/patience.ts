import type { Clock } from "./clock.js";
import { runAs } from "./owner.js";
import { within } from "./time.js";

export interface PatienceOptions {
  readonly clock: Clock;
  /** Time limit of each step; undefined = no limit. */
  readonly timeoutMs: number | undefined;
  /** Called for a step that takes more than a few seconds. */
  readonly onSlow: (plugin: string, step: string) => void;
}

/** Waits for plugins' steps during the start: for a limited time, and reports slow ones. */
export class Patience {
  readonly #options: PatienceOptions;

  constructor(options: PatienceOptions) {
    this.#options = options;
  }

  /** @throws Error `… did not end within … ms`, or what `run` throws. */
  async wait<T>(plugin: string, step: string, run: () => T | Promise<T>): Promise<T> {
    const { clock, timeoutMs, onSlow } = this.#options;
    if (timeoutMs === undefined) return runAs(plugin, run);
    return within(() => runAs(plugin, run), {
      clock,
      timeoutMs,
      keepAlive: true,
      onSlow: () => onSlow(plugin, step),
    });
  }
}
