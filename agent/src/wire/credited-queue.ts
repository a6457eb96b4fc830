import { type Link, FRAME_COST, PayloadWriter, ProtocolError, Request } from "./frames.js";

/**
 * Values from the agent that were not taken yet. The agent may send as much as it was granted; taking grants more, so a
 * consumer that stops makes the agent stop.
 */
export class CreditedQueue<T> {
  readonly #link: Link;
  readonly #windowBytes: number;
  readonly #isPaidByHand: boolean;
  #items: { readonly value: T; readonly cost: number }[] = [];
  #next = 0;
  #grantedBytes: number;
  #takenBytes = 0;
  #hasEnded = false;
  #isCleared = false;
  #error: Error | undefined;
  #changed: PromiseWithResolvers<void> | undefined;

  /**
   * @param grantedBytes amount that the agent was granted already.
   * @param isPaidByHand credit for a value is returned by `pay`, not when it is taken.
   */
  constructor(link: Link, windowBytes: number, grantedBytes = windowBytes, isPaidByHand = false) {
    this.#link = link;
    this.#windowBytes = windowBytes;
    this.#grantedBytes = grantedBytes;
    this.#isPaidByHand = isPaidByHand;
  }

  /** Grants the first window, if the request granted none. */
  open(): void {
    this.#grant(this.#windowBytes);
  }

  /** Counts a frame's bytes. @throws ProtocolError when nothing is granted; the last frame of a grant may exceed it. */
  spend(payloadBytes: number): number {
    if (this.#grantedBytes <= 0) throw new ProtocolError("the agent sends more than it was granted");
    const cost = payloadBytes + FRAME_COST;
    this.#grantedBytes -= cost;
    return cost;
  }

  /** @param cost of its frame, from `spend`; 0 for all but one value of a frame. */
  push(value: T, cost: number): void {
    if (this.#isCleared) return;
    this.#items.push({ value, cost });
    this.#wake();
  }

  end(): void {
    this.#hasEnded = true;
    this.#wake();
  }

  /** Fails the queue: queued values can still be taken, then this error is thrown. */
  fail(error: Error): void {
    this.#error ??= error;
    this.end();
  }

  clear(): void {
    this.#isCleared = true;
    this.#items = [];
    this.#next = 0;
    this.end();
  }

  async take(): Promise<T | undefined> {
    for (;;) {
      const item = this.#items[this.#next];
      if (item !== undefined) {
        this.#advance();
        if (!this.#isPaidByHand) this.pay(item.cost);
        return item.value;
      }
      if (this.#error !== undefined) throw this.#error;
      if (this.#hasEnded) return undefined;
      this.#changed ??= Promise.withResolvers<void>();
      await this.#changed.promise;
    }
  }

  #advance(): void {
    this.#next++;
    if (this.#next < this.#items.length && this.#next < 64) return;
    this.#items = this.#items.slice(this.#next);
    this.#next = 0;
  }

  /** Returns credit for taken values, half a window at a time. */
  pay(cost: number): void {
    this.#takenBytes += cost;
    if (this.#takenBytes < this.#windowBytes / 2 || this.#hasEnded) return;
    const bytes = this.#takenBytes;
    this.#takenBytes = 0;
    this.#grant(bytes);
  }

  #grant(bytes: number): void {
    this.#grantedBytes += bytes;
    this.#link.send(Request.Credit, new PayloadWriter().u32(bytes).finish());
  }

  #wake(): void {
    this.#changed?.resolve();
    this.#changed = undefined;
  }
}
