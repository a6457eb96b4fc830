/** A function that runs once for all its callers, who share the result. After a failure the next call runs again. */
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
