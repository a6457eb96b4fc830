import type { DatabaseSync } from "node:sqlite";

/**
 * Brings an open SQLite file to the newest version, all or nothing.
 * @param migrations each brings a file of that version to the next one; `user_version` counts them.
 * @throws Error when the file is of a version that is not known here.
 */
export function migrate(database: DatabaseSync, migrations: readonly string[]): void {
  database.exec("BEGIN IMMEDIATE");
  try {
    const version = knownVersion(database, migrations.length);
    if (version < migrations.length) {
      for (const step of migrations.slice(version)) database.exec(step);
      database.exec(`PRAGMA user_version = ${migrations.length}`);
    }
    database.exec("COMMIT");
  } catch (error) {
    if (database.isTransaction) database.exec("ROLLBACK");
    throw error;
  }
}

/** The version that a file has, of those from 0 to `newest`. @throws Error when that is not known here. */
export function knownVersion(database: DatabaseSync, newest: number): number {
  const version = Number(database.prepare("PRAGMA user_version").get()?.["user_version"]);
  if (version <= newest) return version;
  throw new Error(`it was written by a newer version (schema ${version}, known are ${newest})`);
}
