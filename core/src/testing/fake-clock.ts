import type { Clock } from "../kernel/clock.js";
import { setTimeout as pause } from "node:timers/promises";

interface Timer {
  readonly atMs: number;
  readonly callback: () => void;
}

/** A clock that stands still until a test advances it. */
export interface FakeClock extends Clock {
  readonly pending: number;
  /** Advances time, running due timers in order. Between two timers it lets all ready tasks run. */
  advance(byMs: number): Promise<void>;
}

/** Makes a clock that starts at `startMs` milliseconds after the Unix epoch. */
export function fakeClock(startMs = Date.UTC(2026, 0, 1)): FakeClock {
  let nowMs = startMs;
  const timers = new Set<Timer>();
  const settle = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
  const nextDue = (untilMs: number): Timer | undefined => {
    let earliest: Timer | undefined;
    for (const timer of timers) {
      if (timer.atMs <= untilMs && (earliest === undefined || timer.atMs < earliest.atMs)) earliest = timer;
    }
    return earliest;
  };
  return {
    get pending() {
      return timers.size;
    },
    now: () => nowMs,
    after(delayMs, callback) {
      const timer: Timer = { atMs: nowMs + Math.max(0, delayMs), callback };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    async advance(byMs) {
      const untilMs = nowMs + byMs;
      await settle();
      for (let timer = nextDue(untilMs); timer !== undefined; timer = nextDue(untilMs)) {
        timers.delete(timer);
        nowMs = Math.max(nowMs, timer.atMs);
        timer.callback();
        await settle();
      }
      nowMs = untilMs;
    },
  };
}

const POLL_MS = 10;

/**
 * Waits until a check answers something truthy, and resolves with that. The limit is for what never comes, so the
 * default suits a busy machine.
 * @throws Error naming what was waited for, and the last answer, after `timeoutMs`.
 */
export async function eventually<T>(
  what: string,
  check: () => T | Promise<T>,
  timeoutMs = 30_000,
): Promise<Exclude<NonNullable<T>, false>> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    const answer = await check();
    if (answer) return answer as Exclude<NonNullable<T>, false>;
    if (performance.now() > deadline)
      throw new Error(`${what}: not within ${timeoutMs} ms (last: ${String(answer)})`);
    await pause(POLL_MS);
  }
}
