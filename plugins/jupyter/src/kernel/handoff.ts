/** Passes items from one producer to one consumer without a buffer: the producer waits for the consumer. */
export class Handoff<T> implements AsyncIterable<T> {
  #offered: { readonly item: T; readonly taken: () => void } | undefined;
  #wake: (() => void) | undefined;
  #hasEnded = false;
  #isAbandoned = false;

  /** Resolves when the consumer took the item, or stopped. */
  put(item: T): Promise<void> | undefined {
    if (this.#isAbandoned || this.#hasEnded) return undefined;
    return new Promise((taken) => {
      this.#offered = { item, taken };
      this.#wake?.();
    });
  }

  /** Ends the consumer's loop after the offered item. */
  end(): void {
    this.#hasEnded = true;
    this.#wake?.();
  }

  /** Stops both sides: the producer no longer waits, the consumer's loop ends. */
  abandon(): void {
    this.#isAbandoned = true;
    this.#offered?.taken();
    this.#offered = undefined;
    this.end();
  }

  /** Iterate once. */
  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for (;;) {
      const offered = this.#offered;
      if (offered !== undefined) {
        this.#offered = undefined;
        offered.taken();
        yield offered.item;
      } else if (this.#hasEnded) return;
      else {
        await new Promise<void>((wake) => {
          this.#wake = wake;
        });
        this.#wake = undefined;
      }
    }
  }
}
