import type { OutputPiece } from "../contract/commands.js";

export interface ReplayedOptions {
  /** Output from before `live` began. */
  readonly history: AsyncIterable<OutputPiece>;
  /** Has begun already. */
  readonly live: AsyncIterable<OutputPiece>;
  readonly signal: AbortSignal;
}

/** First the history, then what comes live. While the history is read, what is live waits with its command. */
export function replayed({ history, live, signal }: ReplayedOptions): AsyncIterable<OutputPiece> {
  const iterator = live[Symbol.asyncIterator]();
  const both = (async function* () {
    try {
      for await (const piece of history) {
        if (signal.aborted) return;
        yield piece;
      }
    } catch (error) {
      // Nobody would read it, and the command wait for that for ever.
      await iterator.return?.();
      throw error;
    }
    yield* live;
  })();
  return {
    [Symbol.asyncIterator]: () => ({
      next: () => both.next(),
      // A generator that was never begun, or is busy, would not let go of the live subscription.
      async return() {
        await iterator.return?.();
        return both.return(undefined);
      },
    }),
  };
}
