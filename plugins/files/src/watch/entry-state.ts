import type { Stats } from "node:fs";

/** What two looks at an entry are compared by. Times are milliseconds since the epoch, as exact as the host has them. */
export interface EntryState {
  readonly kind: "file" | "directory" | "other";
  /** 0 where the file system keeps no births. */
  readonly bornAtMs: number;
  readonly sizeBytes: number;
  readonly accessedAtMs: number;
  readonly modifiedAtMs: number;
  /** When anything of it was changed last, its attributes included. */
  readonly changedAtMs: number;
  /** Permission bits, special ones included. */
  readonly permissions: number;
  /** Names that it has. */
  readonly linkCount: number;
  /** The same under every name that the entry has, and of no other; undefined where the file system cannot tell. */
  readonly identity: string | undefined;
}

export function stateOf(stats: Stats): EntryState {
  return {
    kind: stats.isFile() ? "file" : stats.isDirectory() ? "directory" : "other",
    bornAtMs: stats.birthtimeMs,
    sizeBytes: stats.size,
    accessedAtMs: stats.atimeMs,
    modifiedAtMs: stats.mtimeMs,
    changedAtMs: stats.ctimeMs,
    permissions: stats.mode & 0o7777,
    linkCount: stats.nlink,
    // By its birth an inode is told from the next one of its number.
    identity: stats.birthtimeMs > 0 ? `${stats.dev}:${stats.ino}:${stats.birthtimeMs}` : undefined,
  };
}

/** Whether its content was changed. A directory's never is: what changes it are its entries' events. */
export function isWritten(before: EntryState, after: EntryState): boolean {
  if (after.kind !== "file") return false;
  if (after.sizeBytes !== before.sizeBytes) return true;
  return after.modifiedAtMs !== before.modifiedAtMs && !isDated(before, after);
}

/**
 * Whether its permissions, owner, times or extended attributes were changed, as far as that can be told from a write.
 * @param isSure the host has said that there is a change, and that it is of this name.
 */
export function isChanged(before: EntryState, after: EntryState, isSure: boolean): boolean {
  if (after.permissions !== before.permissions) return true;
  if (after.changedAtMs === before.changedAtMs) return false;
  // Links come and go by their own names.
  if (after.linkCount !== before.linkCount && !isSure) return false;
  if (isWritten(before, after)) return isChangedSinceWritten(after);
  return after.kind === "file" || after.modifiedAtMs === before.modifiedAtMs;
}

export function isChangedSinceWritten(state: EntryState): boolean {
  return state.changedAtMs > state.modifiedAtMs;
}

/** Whether its time was set by hand: to one that no write can have, or together with the time of its last reading. */
function isDated(before: EntryState, after: EntryState): boolean {
  const isTouched =
    after.accessedAtMs !== before.accessedAtMs &&
    after.accessedAtMs === after.modifiedAtMs &&
    after.changedAtMs === after.modifiedAtMs;
  return isTouched || after.modifiedAtMs < before.changedAtMs || after.modifiedAtMs > after.changedAtMs;
}
