import type { Clock } from "./clock.js";
import { runAs } from "./owner.js";
import { within } from "./time.js";

export interface PatienceOptions {
  readonly clock: Clock;
  /** Time limit of each step. */
  readonly timeoutMs: number;
  /** Called for a step that takes noticeably long. */
  readonly onSlow: (plugin: string, step: string) => void;
}

/** Waits for a plugin's step. @throws Error `… did not end within … ms`, or what `run` throws. */
export type Patience = <T>(plugin: string, step: string, run: () => T | Promise<T>) => Promise<T>;

/** Waits for plugins' steps during the start: for a limited time, and reports slow ones. */
export function limitedPatience({ onSlow, ...limit }: PatienceOptions): Patience {
  return (plugin, step, run) =>
    within(() => runAs(plugin, run), { ...limit, keepAlive: true, onSlow: () => onSlow(plugin, step) });
}
