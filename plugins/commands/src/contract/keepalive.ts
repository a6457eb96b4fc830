import type { Clock } from "@coppice/core";

/** Yields the source's items, and `undefined` after each interval of silence. */
export async function* withKeepalives<T>(
  source: AsyncIterable<T>,
  { intervalMs, clock }: { readonly intervalMs: number; readonly clock: Clock },
): AsyncGenerator<T | undefined> {
  const iterator = source[Symbol.asyncIterator]();
  // One waiter that every pull reports to: racing a long-lived promise would pile up its reactions.
  let wake = (): void => {};
  const pull = () => {
    const state: { result?: IteratorResult<T>; failure?: { readonly error: unknown } } = {};
    iterator.next().then(
      (result) => {
        state.result = result;
        wake();
      },
      (error: unknown) => {
        state.failure = { error };
        wake();
      },
    );
    return state;
  };
  try {
    for (let pulled = pull(); ; pulled = pull()) {
      while (pulled.result === undefined) {
        const isSilent = await new Promise<boolean>((resolve) => {
          const cancel = clock.after(intervalMs, () => resolve(true));
          wake = () => {
            cancel();
            resolve(false);
          };
          // It may have arrived while the last keepalive was being sent.
          if (pulled.result !== undefined || pulled.failure !== undefined) wake();
        });
        if (pulled.failure !== undefined) throw pulled.failure.error;
        if (isSilent) yield undefined;
      }
      if (pulled.result.done === true) return;
      yield pulled.result.value;
    }
  } finally {
    wake();
    await iterator.return?.();
  }
}
