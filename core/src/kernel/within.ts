import type { Clock } from "./clock.js";

export interface Deadline {
  readonly clock: Clock;
  readonly timeoutMs: number;
  /** Told once, when it takes noticeably long. */
  readonly onSlow?: () => void;
}

/** After this long somebody who watches wants to know what is being waited for. */
const SLOW_MS = 5_000;

/**
 * Waits for something for a limited time; what does not end in time is left behind.
 * @throws Error `did not end within … ms`, or what `run` throws.
 */
export async function within<T>(
  run: () => T | Promise<T>,
  { clock, timeoutMs, onSlow }: Deadline,
): Promise<T> {
  const { promise: overrun, reject } = Promise.withResolvers<never>();
  const disarm = clock.after(timeoutMs, () => reject(new Error(`did not end within ${timeoutMs} ms`)));
  const disarmSlow = onSlow && timeoutMs > SLOW_MS ? clock.after(SLOW_MS, onSlow) : undefined;
  // The clock's timers are unref'ed: without something that keeps the loop alive a step that waits
  // for nothing would let the process end in the middle of it.
  const keepAlive = setInterval(() => undefined, 60_000);
  try {
    return await Promise.race([run(), overrun]);
  } finally {
    disarm();
    disarmSlow?.();
    clearInterval(keepAlive);
  }
}
