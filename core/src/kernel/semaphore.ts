import { SandboxError } from "./errors.js";

/** Admits a fixed number of holders at a time, one by default; the others wait, in FIFO order of each owner. */
export class Semaphore {
  #free: number;
  readonly #queueLimit: number;
  #waiters = 0;
  /** What waits, by owner. The first owner is next, and is the last one then. */
  readonly #waiting = new Map<string, Set<() => void>>();

  /** @param queueLimit most waiters. */
  constructor(permits = 1, queueLimit = Infinity) {
    this.#free = permits;
    this.#queueLimit = queueLimit;
  }

  /**
   * Waits for a permit; the returned function releases it.
   * @param owner one that has its turn among others, however much of it waits; a tenant, for example.
   * @throws SandboxError unavailable when the queue is full; the signal's reason when it aborts first.
   */
  async acquire(signal?: AbortSignal, owner = ""): Promise<() => void> {
    signal?.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn(signal, owner);
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      this.#release();
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

  #release(): void {
    for (const [owner, own] of this.#waiting) {
      this.#waiting.delete(owner);
      this.#waiting.set(owner, own);
      for (const enter of own) return enter();
    }
    this.#free += 1;
  }

  #turn(signal: AbortSignal | undefined, owner: string): Promise<void> {
    if (this.#waiters >= this.#queueLimit) {
      throw new SandboxError("server_busy", "too many requests are waiting for their turn, please retry");
    }
    return new Promise((resolve, reject) => {
      const own = this.#waiting.get(owner) ?? new Set();
      const leave = (): void => {
        this.#waiters -= 1;
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
      this.#waiters += 1;
      this.#waiting.set(owner, own.add(enter));
      signal?.addEventListener("abort", giveUp, { once: true });
    });
  }
}
