/** Admits one holder at a time, in FIFO order. */
export class FifoLock {
  #last: Promise<void> = Promise.resolve();

  /**
   * Waits for a turn, which lasts until it is disposed of.
   * @throws the signal's reason when it aborts first; the turn passes on to the next one then.
   */
  async acquire(signal: AbortSignal): Promise<Disposable> {
    const before = this.#last;
    const { promise: over, resolve: release } = Promise.withResolvers<void>();
    this.#last = before.then(() => over);
    const aborted = Promise.withResolvers<never>();
    const abort = (): void => aborted.reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    try {
      signal.throwIfAborted();
      await Promise.race([before, aborted.promise]);
      return { [Symbol.dispose]: release };
    } catch (error) {
      release();
      throw error;
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }
}
