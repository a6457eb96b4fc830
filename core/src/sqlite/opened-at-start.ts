/**
 * Holds a file for a plugin, which calls `open` in its `onStart` and `close` in its `onStop`: before the start another
 * server may use the same data directory.
 */
export function openedAtStart<T extends { close(): void }>(open: () => T) {
  let opened: T | undefined;
  return {
    open: (): void => {
      opened = open();
    },
    close: (): void => {
      opened?.close();
      opened = undefined;
    },
    /** @throws Error before the start and after the stop. */
    get: (): T => {
      if (opened === undefined) throw new Error("it is not open");
      return opened;
    },
    /** Undefined before the start and after the stop. */
    find: (): T | undefined => opened,
  };
}
