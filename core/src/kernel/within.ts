import type { Clock } from "./clock.js";

export interface Deadline {
  readonly clock: Clock;
  readonly timeoutMs: number;
  /** Called once when it takes noticeably long. */
  readonly onSlow?: () => void;
}

/** After this long an operator should see what is being waited for. */
const SLOW_MS = 5_000;

/**
 * Waits for `run` for a limited time; afterwards its outcome is ignored.
 * @throws Error `did not end within … ms`, or what `run` throws.
 */
export async function within<T>(
  run: () => T | Promise<T>,
  { clock, timeoutMs, onSlow }: Deadline,
): Promise<T> {
  const { promise: overrun, reject } = Promise.withResolvers<never>();
  const disarm = clock.after(timeoutMs, () => reject(new Error(`did not end within ${timeoutMs} ms`)));
  const disarmSlow = onSlow && timeoutMs > SLOW_MS ? clock.after(SLOW_MS, onSlow) : undefined;
  // The clock's timers are unref'ed: without this one the process could end in the middle of a step that waits for
  // nothing else.
  const keepAlive = setInterval(() => undefined, 60_000);
  try {
    return await Promise.race([run(), overrun]);
  } finally {
    disarm();
    disarmSlow?.();
    clearInterval(keepAlive);
  }
}
