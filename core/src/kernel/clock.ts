import { createToken } from "./token.js";

/** Source of time; tests can advance it. */
export interface Clock {
  /** Milliseconds since the Unix epoch. */
  now(): number;
  /** Runs `callback` once after `delayMs`; the returned function cancels that. */
  after(delayMs: number, callback: () => void): () => void;
}

export const Clock = createToken<Clock>("clock");

// setTimeout turns anything above this into 1 ms.
const MAX_TIMER_MS = 2 ** 31 - 1;

/** The clock of this machine. Its timers do not keep the process alive. */
export const systemClock: Clock = {
  now: () => Date.now(),
  after(delayMs, callback) {
    let timer: NodeJS.Timeout;
    const arm = (leftMs: number): void => {
      const stepMs = Math.min(Math.max(leftMs, 0), MAX_TIMER_MS);
      timer = setTimeout(() => (leftMs > stepMs ? arm(leftMs - stepMs) : callback()), stepMs);
      timer.unref();
    };
    arm(delayMs);
    return () => clearTimeout(timer);
  },
};
