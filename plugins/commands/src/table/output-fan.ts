import type { OutputPiece, OutputSubscription } from "../contract/commands.js";

// Overhead of a queue entry, so that a flood of tiny pieces is bounded as well.
const ENTRY_BYTES = 64;

/** Copies one output to each of its subscribers, at the pace of the slowest. */
export class OutputFan {
  readonly #bufferBytes: number;
  readonly #subscriptions = new Set<Subscription>();
  #isClosed = false;
  #waiting: (() => void) | undefined;

  /** @param bufferBytes unread bytes of a subscriber before `publish` waits for it. */
  constructor(bufferBytes: number) {
    this.#bufferBytes = bufferBytes;
  }

  /** Everything published from now on, until the fan is closed or the signal aborts. Iterate once. */
  subscribe(signal: AbortSignal): OutputSubscription {
    const subscription = new Subscription({
      signal,
      onRoom: () => this.#wake(),
      onLeave: () => {
        this.#subscriptions.delete(subscription);
        this.#wake();
      },
    });
    if (this.#isClosed || signal.aborted) subscription.close();
    else this.#subscriptions.add(subscription);
    return subscription;
  }

  /** Resolves when every subscriber has room for more. The piece is released when each of them has released it. */
  async publish(output: OutputPiece): Promise<void> {
    const piece = sharedBy(this.#subscriptions.size, output);
    for (const subscription of this.#subscriptions) subscription.push(piece);
    while (this.#isFull()) {
      await new Promise<void>((resolve) => {
        this.#waiting = resolve;
      });
    }
  }

  /** Ends subscriptions after their unread output, and releases a waiting publisher. */
  close(): void {
    this.#isClosed = true;
    for (const subscription of this.#subscriptions) subscription.close();
    this.#subscriptions.clear();
    this.#wake();
  }

  #isFull(): boolean {
    for (const subscription of this.#subscriptions) {
      if (subscription.queuedBytes >= this.#bufferBytes) return true;
    }
    return false;
  }

  #wake(): void {
    this.#waiting?.();
    this.#waiting = undefined;
  }
}

function sharedBy(readers: number, piece: OutputPiece): OutputPiece {
  const { release } = piece;
  if (readers === 0) release?.();
  if (readers < 2 || release === undefined) return piece;
  let left = readers;
  const leave = (): void => {
    left -= 1;
    if (left === 0) release();
  };
  return { ...piece, release: leave };
}

interface SubscriptionOptions {
  readonly signal: AbortSignal;
  readonly onRoom: () => void;
  readonly onLeave: () => void;
}

// No async generator: `return` has to work while a `next` is pending.
class Subscription implements AsyncIterableIterator<OutputPiece>, OutputSubscription {
  readonly #options: SubscriptionOptions;
  readonly #queue: OutputPiece[] = [];
  readonly #leave = (): void => this.#finish();
  #isClosed = false;
  #pending: ((result: IteratorResult<OutputPiece>) => void) | undefined;
  queuedBytes = 0;

  constructor(options: SubscriptionOptions) {
    this.#options = options;
    options.signal.addEventListener("abort", this.#leave, { once: true });
  }

  push(output: OutputPiece): void {
    if (this.#pending !== undefined) {
      this.#settle({ done: false, value: output });
      return;
    }
    this.#queue.push(output);
    this.queuedBytes += output.data.length + ENTRY_BYTES;
  }

  close(): void {
    this.#isClosed = true;
    this.#options.signal.removeEventListener("abort", this.#leave);
    this.#settle({ done: true, value: undefined });
  }

  taken(mostBytes: number): readonly OutputPiece[] {
    const pieces: OutputPiece[] = [];
    let bytes = 0;
    for (let [next] = this.#queue; next !== undefined; [next] = this.#queue) {
      bytes += next.data.length;
      if (bytes > mostBytes) break;
      pieces.push(next);
      this.#shift();
    }
    return pieces;
  }

  next(): Promise<IteratorResult<OutputPiece>> {
    const output = this.#shift();
    if (output !== undefined) return Promise.resolve({ done: false, value: output });
    if (this.#isClosed) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve) => {
      this.#pending = resolve;
    });
  }

  return(): Promise<IteratorResult<OutputPiece>> {
    this.#finish();
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  #finish(): void {
    for (const { release } of this.#queue.splice(0)) release?.();
    this.queuedBytes = 0;
    this.close();
    this.#options.onLeave();
  }

  #shift(): OutputPiece | undefined {
    const output = this.#queue.shift();
    if (output === undefined) return undefined;
    this.queuedBytes -= output.data.length + ENTRY_BYTES;
    this.#options.onRoom();
    return output;
  }

  #settle(result: IteratorResult<OutputPiece>): void {
    this.#pending?.(result);
    this.#pending = undefined;
  }
}
