import { closeSync, openSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { messageOf } from "../kernel/errors.js";
import { migrate } from "./migrate.js";

export interface DatabaseOptions {
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
