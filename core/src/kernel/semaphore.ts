import { SandboxError } from "./errors.js";

/** Admits a fixed number of holders at a time, one by default; the others wait in FIFO order. */
export class Semaphore {
  #free: number;
  readonly #queueLimit: number;
  readonly #waiting = new Set<() => void>();

  /** @param queueLimit most waiters. */
  constructor(permits = 1, queueLimit = Infinity) {
    this.#free = permits;
    this.#queueLimit = queueLimit;
  }

  /**
   * Waits for a permit; the returned function releases it.
   * @throws SandboxError unavailable when the queue is full; the signal's reason when it aborts first.
   */
  async acquire(signal?: AbortSignal): Promise<() => void> {
    signal?.throwIfAborted();
    if (this.#free > 0) this.#free -= 1;
    else await this.#turn(signal);
    let isHeld = true;
    return () => {
      if (!isHeld) return;
      isHeld = false;
      const [next] = this.#waiting;
      if (next === undefined) this.#free += 1;
      else next();
    };
  }

  /** Runs something in its turn. @throws as `acquire`, or what `run` throws. */
  async run<T>(run: () => T | Promise<T>, signal?: AbortSignal): Promise<T> {
    const release = await this.acquire(signal);
    try {
      return await run();
    } finally {
      release();
    }
  }

  #turn(signal: AbortSignal | undefined): Promise<void> {
    if (this.#waiting.size >= this.#queueLimit) {
      throw new SandboxError("server_busy", "too many requests are waiting for their turn, please retry");
    }
    return new Promise((resolve, reject) => {
      const leave = (): void => {
        this.#waiting.delete(enter);
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
      this.#waiting.add(enter);
      signal?.addEventListener("abort", giveUp, { once: true });
    });
  }
}
