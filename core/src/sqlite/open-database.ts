import { closeSync, openSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { messageOf } from "../kernel/errors.js";

interface DatabaseOptions {
  readonly path: string;
  /** Each migrates a file from that version to the next; `user_version` counts them. */
  readonly migrations: readonly string[];
}

// The command line and a server have the same file open; each holds it for one statement.
const BUSY_TIMEOUT_MS = 5000;

/**
 * Opens an SQLite file that other processes of this user may have open too; creates it when missing, for this user
 * alone. Committed writes survive the end of this process.
 * @throws Error that names the file.
 */
export function openDatabase({ path, migrations }: DatabaseOptions): DatabaseSync {
  let database: DatabaseSync | undefined;
  try {
    closeSync(openSync(path, "a", 0o600));
    database = new DatabaseSync(path, { timeout: BUSY_TIMEOUT_MS });
    database.exec("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL");
    migrate(database, migrations);
    return database;
  } catch (error) {
    database?.close();
    throw new Error(`cannot use ${path}: ${messageOf(error)}`, { cause: error });
  }
}

/**
 * Migrates an open SQLite file to the newest version, all or nothing.
 * @param migrations each migrates from that version to the next; `user_version` counts them.
 * @throws Error for an unknown version.
 */
export function migrate(database: DatabaseSync, migrations: readonly string[]): void {
  transaction(database, () => {
    const version = knownVersion(database, migrations.length);
    if (version === migrations.length) return;
    for (const step of migrations.slice(version)) database.exec(step);
    database.exec(`PRAGMA user_version = ${migrations.length}`);
  });
}

/** The version of a file, from 0 to `newest`. @throws Error for an unknown one. */
export function knownVersion(database: DatabaseSync, newest: number): number {
  const version = Number(database.prepare("PRAGMA user_version").get()?.["user_version"]);
  if (version <= newest) return version;
  throw new Error(`it was written by a newer version (schema ${version}, known are ${newest})`);
}

/** Runs writes all or nothing. @throws what `run` throws, after a roll-back. */
export function transaction<T>(database: DatabaseSync, run: () => T): T {
  database.exec("BEGIN IMMEDIATE");
  try {
    const result = run();
    database.exec("COMMIT");
    return result;
  } catch (error) {
    if (database.isTransaction) database.exec("ROLLBACK");
    throw error;
  }
}

/**
 * Primary result code of an SQLite error, whose upper bits refine it; undefined for any other error.
 * Source: https://www.sqlite.org/rescode.html
 */
export function sqliteErrorCode(error: unknown): number | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, errcode } = error as { readonly code?: unknown; readonly errcode?: number };
  return code === "ERR_SQLITE_ERROR" && errcode !== undefined ? errcode % 256 : undefined;
}

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
