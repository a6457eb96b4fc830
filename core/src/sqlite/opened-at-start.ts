/** A file that is opened when the server starts: before that another server may have the same data directory. */
export interface OpenedAtStart<T> {
  readonly open: () => void;
  readonly close: () => void;
  /** @throws Error before the start and after the stop. */
  readonly get: () => T;
  /** Undefined before the start and after the stop. */
  readonly find: () => T | undefined;
}

/** Keeps a file for a plugin: `open` is for its `onStart`, `close` for its `onStop`. */
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
