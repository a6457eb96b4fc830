import { SandboxError } from "../kernel/errors.js";
import { Shares, type Tenants } from "./tenants.js";

interface SemaphoreOptions {
  /** Most waiters; any number when absent. */
  readonly queueLimit?: number;
  /** Where owners are tenants: each has its share of the permits and of the queue, and waits for more. */
  readonly tenants?: Tenants;
}

/** Admits a fixed number of holders at a time, one by default; the others wait, in FIFO order of each owner. */
export class Semaphore {
  readonly #permits: Shares;
  readonly #queue: Shares;
  /** What waits, by owner. The first owner is next, and is the last one then. */
  readonly #waiting = new Map<string, Set<() => void>>();

  constructor(permits = 1, { queueLimit = Infinity, tenants }: SemaphoreOptions = {}) {
    this.#permits = new Shares(permits, tenants);
    this.#queue = new Shares(queueLimit, tenants);
  }

  /**
   * Waits for a permit; the returned function releases it.
   * @param owner one that has its turn among others, however much of it waits; a tenant, for example.
   * @throws SandboxError unavailable when the queue is full; the signal's reason when it aborts first.
   */
  async acquire(signal?: AbortSignal, owner = ""): Promise<() => void> {
    signal?.throwIfAborted();
    if (this.#permits.take(owner) !== undefined) await this.#turn(signal, owner);
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.#permits.give(owner);
      while (this.#admitNext());
    };
  }

  /** Runs something in its turn. @throws as `acquire`, or what `run` throws. */
  async run<T>(run: () => T | Promise<T>, signal?: AbortSignal, owner?: string): Promise<T> {
    const release = await this.acquire(signal, owner);
    try {
      return await run();
    } finally {
      release();
    }
  }

  /** @returns false when none of those that wait may enter. */
  #admitNext(): boolean {
    for (const [owner, [enter]] of this.#waiting) {
      if (enter === undefined || this.#permits.take(owner) !== undefined) continue;
      const own = this.#waiting.get(owner);
      this.#waiting.delete(owner);
      if (own !== undefined) this.#waiting.set(owner, own);
      enter();
      return true;
    }
    return false;
  }

  #turn(signal: AbortSignal | undefined, owner: string): Promise<void> {
    if (this.#queue.take(owner) !== undefined) {
      throw new SandboxError("server_busy", "too many requests are waiting for their turn, please retry");
    }
    return new Promise((resolve, reject) => {
      const own = this.#waiting.get(owner) ?? new Set();
      const leave = (): void => {
        this.#queue.give(owner);
        own.delete(enter);
        if (own.size === 0) this.#waiting.delete(owner);
        signal?.removeEventListener("abort", giveUp);
      };
      const enter = (): void => {
        leave();
        resolve();
      };
      const giveUp = (): void => {
        leave();
        reject(signal?.reason as Error);
      };
      this.#waiting.set(owner, own.add(enter));
      signal?.addEventListener("abort", giveUp, { once: true });
    });
  }
}

/**
 * A function that runs once for all its callers, who share the result. After a failure the next call runs again, and so
 * does one after `forget`. `current` has no result for a failure, and is undefined when nothing runs or has run.
 */
export function sharedUntilFailure<T>(
  run: () => Promise<T>,
): (() => Promise<T>) & { current(): Promise<T | undefined> | undefined; forget(): void } {
  let shared: Promise<T> | undefined;
  const forget = (): void => {
    shared = undefined;
  };
  const get = (): Promise<T> => {
    shared ??= run().catch((error: unknown) => {
      forget();
      throw error;
    });
    return shared;
  };
  return Object.assign(get, { current: () => shared?.catch(() => undefined), forget });
}
