import type { DatabaseSync } from "node:sqlite";
import { Table, transaction } from "@coppice/core";
import { z } from "zod";
import { LOG_LEVELS, type LogEntry, logEntry, type LogLevel } from "../model/build-log.js";

/** Which entries of a log are wanted. */
export interface LogPage {
  /** The least level. */
  readonly level: LogLevel;
  readonly limit: number;
}

const storedEntry = logEntry.extend({
  build: z.string(),
  /** Place in the log of its build, from 0 on. */
  number: z.number(),
  level: z.number().transform((level) => LOG_LEVELS[level] ?? "info"),
});

const WANTED = "WHERE build = ? AND level >= ?";

/** Logs of builds. */
export class LogTable {
  readonly #database: DatabaseSync;
  readonly #entries: Table<typeof storedEntry>;

  constructor(database: DatabaseSync) {
    this.#database = database;
    this.#entries = new Table(database, { name: "log_entry", schema: storedEntry });
  }

  /** @param number of the first entry in the log of its build. */
  add(build: string, number: number, entries: readonly LogEntry[]): void {
    transaction(this.#database, () => {
      for (const [index, entry] of entries.entries())
        this.#entries.insert({ ...entry, build, number: number + index, level: rank(entry.level) });
    });
  }

  /** In their order. @param offset how many entries of these levels to leave out. */
  list(build: string, { level, limit, offset }: LogPage & { readonly offset: number }): readonly LogEntry[] {
    const page = `${WANTED} ORDER BY number LIMIT ? OFFSET ?`;
    return this.#entries.select(page, build, rank(level), limit, offset);
  }

  /** From a time on, in their order. */
  since(build: string, fromMs: number, { level, limit }: LogPage): readonly LogEntry[] {
    const page = `${WANTED} AND at_ms >= ? ORDER BY number LIMIT ?`;
    return this.#entries.select(page, build, rank(level), fromMs, limit);
  }

  /** Up to a time, newest first. */
  before(build: string, untilMs: number, { level, limit }: LogPage): readonly LogEntry[] {
    const page = `${WANTED} AND at_ms <= ? ORDER BY number DESC LIMIT ?`;
    return this.#entries.select(page, build, rank(level), untilMs, limit);
  }

  /** The last entries of a step. */
  ofStep(build: string, step: string, limit: number): readonly LogEntry[] {
    return this.#entries.all({ build, step }, { by: "number DESC", limit }).toReversed();
  }
}

function rank(level: LogLevel): number {
  return LOG_LEVELS.indexOf(level);
}
