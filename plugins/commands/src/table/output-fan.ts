import { type HeldMemory, SandboxError } from "@coppice/core";
import type { OutputPiece, OutputSubscription } from "../contract/commands.js";

interface ReplayedOptions {
  readonly history: AsyncIterable<OutputPiece>;
  /** Already subscribed. */
  readonly live: OutputSubscription;
  readonly signal: AbortSignal;
}

/** Yields the history, then live output. Meanwhile live output waits with its command. */
export function replayed({ history, live, signal }: ReplayedOptions): OutputSubscription {
  const iterator = live[Symbol.asyncIterator]();
  let isLive = false;
  const both = (async function* () {
    try {
      for await (const piece of history) {
        if (signal.aborted) return;
        yield piece;
      }
    } catch (error) {
      // An unread subscription would block the command forever.
      await iterator.return?.();
      throw error;
    }
    isLive = true;
    yield* live;
  })();
  return {
    taken: (mostBytes) => (isLive ? live.taken(mostBytes) : []),
    [Symbol.asyncIterator]: () => ({
      next: () => both.next(),
      // A generator that never began, or is busy, would not release the live subscription.
      async return() {
        await iterator.return?.();
        return both.return(undefined);
      },
    }),
  };
}

// Overhead of a queue entry, so that a flood of tiny pieces is bounded as well.
const ENTRY_BYTES = 64;

/** Time after which a subscriber without room counts as one that does not read. */
const STALLED_AFTER_MS = 500;
/** What an agent may have sent of a command before it is taken, as its window for kept output. */
const UNTAKEN_BYTES = 2 * 2 ** 20;

/** Copies one output to each of its subscribers, at the pace of the slowest. */
export class OutputFan {
  readonly #bufferBytes: number;
  readonly #subscriptions = new Set<Subscription>();
  readonly #held: HeldMemory | undefined;
  #place: ReturnType<HeldMemory["place"]> | undefined;
  /** Bytes that the agent may hold because a subscriber does not read. */
  #untakenBytes = 0;
  #isClosed = false;
  #waiting: (() => void) | undefined;

  /**
   * @param bufferBytes unread bytes of a subscriber before `publish` waits for it.
   * @param held counts what waits for subscribers, and in the agent while one does not read; uncounted when absent.
   */
  constructor(bufferBytes: number, held?: HeldMemory) {
    this.#bufferBytes = bufferBytes;
    this.#held = held;
    this.#place = held?.place();
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
    const readers = this.#isClosed ? [] : [...this.#subscriptions];
    const piece = sharedBy(readers.length, output);
    for (const subscription of readers) subscription.push(piece);
    this.#count();
    if (!this.#isFull()) return;
    const timer = setTimeout(() => {
      this.#untakenBytes = UNTAKEN_BYTES;
      this.#count();
    }, STALLED_AFTER_MS);
    while (this.#isFull())
      await new Promise<void>((resolve) => {
        this.#waiting = resolve;
      });
    clearTimeout(timer);
    this.#untakenBytes = 0;
    this.#count();
  }

  /** Cuts off the subscribers that have no room for more, or else those that have the most to take. */
  cutSlow(): void {
    const text = "the client takes the output too slowly, and commands.maxUntaken is full";
    const fewest = Math.min(this.#bufferBytes, this.#longestBytes());
    this.#place = undefined;
    this.#untakenBytes = 0;
    for (const subscription of this.#subscriptions)
      if (subscription.queuedBytes >= fewest) subscription.cut(new SandboxError("server_busy", text));
    this.#place = this.#held?.place();
    this.#count();
  }

  /** Ends subscriptions after their unread output, which still counts, and releases a waiting publisher. */
  close(): void {
    this.#isClosed = true;
    for (const subscription of this.#subscriptions) subscription.close();
    this.#wake();
  }

  #isFull(): boolean {
    return !this.#isClosed && this.#longestBytes() >= this.#bufferBytes;
  }

  /** Subscribers share the pieces that they have not taken. */
  #longestBytes(): number {
    let longest = 0;
    for (const { queuedBytes } of this.#subscriptions) longest = Math.max(longest, queuedBytes);
    return longest;
  }

  #count(): void {
    this.#place?.resize(this.#untakenBytes + this.#longestBytes());
  }

  #wake(): void {
    this.#count();
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
  /** Why it was cut off. */
  #reason: SandboxError | undefined;
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

  /** Drops what it has not taken; it learns why with its next piece. */
  cut(reason: SandboxError): void {
    this.#reason = reason;
    this.#finish();
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
    const reason = this.#reason;
    this.#reason = undefined;
    if (reason !== undefined) return Promise.reject(reason);
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
