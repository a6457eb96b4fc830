/** A file that is opened when the server starts: before, another server may use the same data directory. */
export interface OpenedAtStart<T> {
  readonly open: () => void;
  readonly close: () => void;
  /** @throws Error before the start and after the stop. */
  readonly get: () => T;
  /** Undefined before the start and after the stop. */
  readonly find: () => T | undefined;
}

/** Holds a file for a plugin: call `open` in its `onStart`, `close` in its `onStop`. */
export function openedAtStart<T extends { close(): void }>(open: () => T): OpenedAtStart<T> {
  let opened: T | undefined;
  return {
    open: () => {
      opened = open();
    },
    close: () => {
      opened?.close();
      opened = undefined;
    },
    get: () => {
      if (opened === undefined) throw new Error("it is not open");
      return opened;
    },
    find: () => opened,
  };
}
