/** 128 and SIGINT. */
export const EXIT_INTERRUPTED = 130;

/** Runs something that the first Ctrl-C aborts. The second one ends this process at once. */
export async function withInterrupt<T>(run: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const aborting = new AbortController();
  const onInterrupt = (): void => {
    if (aborting.signal.aborted) process.exit(EXIT_INTERRUPTED);
    aborting.abort(new Error("interrupted"));
  };
  process.on("SIGINT", onInterrupt);
  process.on("SIGTERM", onInterrupt);
  try {
    return await run(aborting.signal);
  } finally {
    process.off("SIGINT", onInterrupt);
    process.off("SIGTERM", onInterrupt);
  }
}
