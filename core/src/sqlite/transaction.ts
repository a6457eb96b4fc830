import type { DatabaseSync } from "node:sqlite";

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
