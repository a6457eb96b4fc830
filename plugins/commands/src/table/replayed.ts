import type { OutputPiece } from "../contract/commands.js";

interface ReplayedOptions {
  readonly history: AsyncIterable<OutputPiece>;
  /** Already subscribed. */
  readonly live: AsyncIterable<OutputPiece>;
  readonly signal: AbortSignal;
}

/** Yields the history, then live output. Meanwhile live output waits with its command. */
export function replayed({ history, live, signal }: ReplayedOptions): AsyncIterable<OutputPiece> {
  const iterator = live[Symbol.asyncIterator]();
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
    yield* live;
  })();
  return {
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
