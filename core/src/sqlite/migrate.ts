import type { DatabaseSync } from "node:sqlite";
import { transaction } from "./transaction.js";

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
