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
