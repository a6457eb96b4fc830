import type { Clock } from "./clock.js";

interface TimeLimit {
  readonly clock: Clock;
  readonly timeoutMs: number;
}

export interface Deadline extends TimeLimit {
  /** Ends the waiting early. */
  readonly signal?: AbortSignal | undefined;
  /** Makes the error of a timeout; `did not end within … ms` by default. */
  readonly overdue?: () => Error;
  /** Keeps the process from ending meanwhile; the clock's timers do not. */
  readonly keepAlive?: boolean;
  /** Called once when it takes noticeably long. */
  readonly onSlow?: () => void;
}

/** Time after which an operator should see what the server waits for. */
const SLOW_MS = 5_000;

/**
 * Waits for `run` for a limited time. Its signal aborts when the time is over or the waiting is given up; a `run` that
 * does not end then is left behind.
 * @throws the error of the timeout, the signal's reason, or what `run` throws.
 */
export async function within<T>(
  run: (signal: AbortSignal) => T | Promise<T>,
  { clock, timeoutMs, signal, overdue, keepAlive = false, onSlow }: Deadline,
): Promise<T> {
  signal?.throwIfAborted();
  const abandoning = new AbortController();
  const giveUp = (): void => abandoning.abort(signal?.reason);
  signal?.addEventListener("abort", giveUp, { once: true });
  const disarm = clock.after(timeoutMs, () =>
    abandoning.abort(overdue?.() ?? new Error(`did not end within ${timeoutMs} ms`)),
  );
  const disarmSlow = onSlow && timeoutMs > SLOW_MS ? clock.after(SLOW_MS, onSlow) : undefined;
  const keeper = keepAlive ? setInterval(() => undefined, 60_000) : undefined;
  try {
    // The result is the signal's reason, not the error that `run` throws for it.
    return await unlessAborted(abandoning.signal, () => run(abandoning.signal));
  } finally {
    signal?.removeEventListener("abort", giveUp);
    disarm();
    disarmSlow?.();
    clearInterval(keeper);
  }
}

/**
 * Calls `run` and waits for its result. An abort of the signal ends the wait, but not `run`. @throws the signal's
 * reason, or what `run` throws.
 */
export async function unlessAborted<T>(signal: AbortSignal, run: () => T | Promise<T>): Promise<T> {
  signal.throwIfAborted();
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const abort = (): void => reject(signal.reason);
  signal.addEventListener("abort", abort, { once: true });
  try {
    return await Promise.race([run(), aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/**
 * Returns true when the promise is fulfilled within that time, false when the time is over first. It may be called again
 * and again for the same promise. @throws what the promise is rejected with.
 */
export async function fulfilledWithin(
  promise: Promise<unknown>,
  { clock, timeoutMs }: TimeLimit,
): Promise<boolean> {
  const outcome = outcomeOf(promise);
  if (!outcome.isSettled) {
    const { promise: over, resolve } = Promise.withResolvers<void>();
    const disarm = clock.after(timeoutMs, resolve);
    outcome.waiting.add(resolve);
    await over;
    outcome.waiting.delete(resolve);
    disarm();
  }
  if (!outcome.isSettled) return false;
  await promise;
  return true;
}

interface Outcome {
  isSettled: boolean;
  readonly waiting: Set<() => void>;
}

/** One for all waits for a promise: a promise keeps its reactions until it is settled, and they would pile up. */
const outcomes = new WeakMap<Promise<unknown>, Outcome>();

function outcomeOf(promise: Promise<unknown>): Outcome {
  const known = outcomes.get(promise);
  if (known !== undefined) return known;
  const outcome: Outcome = { isSettled: false, waiting: new Set() };
  const settle = (): void => {
    outcome.isSettled = true;
    for (const wake of outcome.waiting) wake();
  };
  promise.then(settle, settle);
  outcomes.set(promise, outcome);
  return outcome;
}

/** Aborts a controller when the time is over, unless what this returns is disposed of first. */
export function abortAfter(
  aborting: AbortController,
  { clock, timeoutMs, overdue }: TimeLimit & { readonly overdue?: () => Error },
): Disposable {
  return { [Symbol.dispose]: clock.after(timeoutMs, () => aborting.abort(overdue?.())) };
}

/** Lets time pass. @throws the signal's reason when it aborts first. */
export async function sleep(clock: Clock, delayMs: number, signal?: AbortSignal): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  const disarm = clock.after(delayMs, resolve);
  try {
    await (signal === undefined ? promise : unlessAborted(signal, () => promise));
  } finally {
    disarm();
  }
}

/** Waits for a plugin's step during the start. @throws Error `… did not end within … ms`, or what `run` throws. */
export type Patience = <T>(plugin: string, step: string, run: () => T | Promise<T>) => Promise<T>;
