import type { DatabaseSync } from "node:sqlite";
import { transaction } from "@coppice/core";
import type { LogEntry, LogLevel } from "../model/build-log.js";

export const LOG_LEVELS: readonly LogLevel[] = ["debug", "info", "warn", "error"];

/** Which entries of a log are wanted. */
export interface LogPage {
  /** The least level. */
  readonly level: LogLevel;
  readonly limit: number;
}

/** Logs of builds. */
export class LogTable {
  readonly #database: DatabaseSync;
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#database = database;
    this.#statements = prepare(database);
  }

  /** @param number of the first entry in the log of its build, from 0 on. */
  add(buildId: string, number: number, entries: readonly LogEntry[]): void {
    transaction(this.#database, () => {
      for (const [index, { atMs, level, message, step }] of entries.entries()) {
        const values = [atMs, LOG_LEVELS.indexOf(level), message, step ?? null];
        this.#statements.add.run(buildId, number + index, ...values);
      }
    });
  }

  /** In their order. @param offset how many entries of these levels to leave out. */
  list(
    buildId: string,
    { level, limit, offset }: LogPage & { readonly offset: number },
  ): readonly LogEntry[] {
    return this.#statements.list.all(buildId, LOG_LEVELS.indexOf(level), limit, offset).map(parse);
  }

  /** From a time on, in their order. */
  since(buildId: string, fromMs: number, { level, limit }: LogPage): readonly LogEntry[] {
    return this.#statements.since.all(buildId, LOG_LEVELS.indexOf(level), fromMs, limit).map(parse);
  }

  /** Up to a time, newest first. */
  before(buildId: string, untilMs: number, { level, limit }: LogPage): readonly LogEntry[] {
    return this.#statements.before.all(buildId, LOG_LEVELS.indexOf(level), untilMs, limit).map(parse);
  }

  /** The last entries of a step. */
  ofStep(buildId: string, step: string, limit: number): readonly LogEntry[] {
    return this.#statements.ofStep.all(buildId, step, limit).map(parse).toReversed();
  }
}

function prepare(database: DatabaseSync) {
  const wanted = "SELECT * FROM log_entry WHERE build = ? AND level >= ?";
  return {
    add: database.prepare(
      "INSERT INTO log_entry (build, number, at_ms, level, message, step) VALUES (?, ?, ?, ?, ?, ?)",
    ),
    list: database.prepare(`${wanted} ORDER BY number LIMIT ? OFFSET ?`),
    since: database.prepare(`${wanted} AND at_ms >= ? ORDER BY number LIMIT ?`),
    before: database.prepare(`${wanted} AND at_ms <= ? ORDER BY number DESC LIMIT ?`),
    ofStep: database.prepare(
      "SELECT * FROM log_entry WHERE build = ? AND step = ? ORDER BY number DESC LIMIT ?",
    ),
  };
}

function parse(row: Readonly<Record<string, unknown>>): LogEntry {
  const { at_ms: atMs, level, message, step } = row;
  return {
    atMs: Number(atMs),
    level: LOG_LEVELS[Number(level)] ?? "info",
    message: String(message),
    step: typeof step === "string" ? step : undefined,
  };
}
