/**
 * A function that runs once for all its callers: they share what came of it. What failed may work the next
 * time: the call after a failure runs again.
 */
export function sharedUntilFailure<T>(run: () => Promise<T>): () => Promise<T> {
  let shared: Promise<T> | undefined;
  return () => {
    shared ??= run().catch((error: unknown) => {
      shared = undefined;
      throw error;
    });
    return shared;
  };
}
