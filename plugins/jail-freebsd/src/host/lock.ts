import { DatabaseSync } from "node:sqlite";

const SQLITE_BUSY = 5;

/**
 * Takes a lock that ends with `close`, or with the process, even after a crash.
 * @returns undefined while somebody else has it.
 */
export function takeLock(path: string): DatabaseSync | undefined {
  // Used only for its lock: Node has none for files.
  const lock = new DatabaseSync(path, { timeout: 0 });
  try {
    lock.exec("BEGIN EXCLUSIVE");
    return lock;
  } catch (error) {
    lock.close();
    if ((error as { readonly errcode?: number }).errcode !== SQLITE_BUSY) throw error;
    return undefined;
  }
}
