import type { DatabaseSync } from "node:sqlite";
import { type Inferred, Table, transaction } from "@coppice/core";
import type { ImageId } from "@coppice/core/backend";
import { z } from "zod";
import type { BuildResult } from "../model/layer.js";
import {
  type BuildLimits,
  type BuildReason,
  type BuildRecord,
  buildRecord,
  LOG_LEVELS,
  type LogEntry,
  logEntry,
  type LogLevel,
} from "../model/build-record.js";

/** A tag of a template, and the build that it leads to. */
export type Tag = Omit<Inferred<typeof tag>, "templateId">;

const tag = z.object({
  templateId: z.string(),
  name: z.string(),
  buildId: z.string(),
  /** Milliseconds since the Unix epoch. */
  assignedAtMs: z.number(),
});

/** Assignments of tags to builds. Of a tag's ready builds the one that got it last has it. */
export class TagTable extends Table<typeof tag> {
  constructor(database: DatabaseSync) {
    super(database, { name: "tag", schema: tag, columns: { templateId: "template", buildId: "build" } });
  }

  assign(templateId: string, name: string, buildId: string, nowMs: number): void {
    // In place of an earlier assignment to the same build.
    this.insert({ templateId, name, buildId, assignedAtMs: nowMs }, "REPLACE");
  }

  /** Tags with a ready build, by name. */
  list(templateId: string): readonly Tag[] {
    return this.select(
      `WHERE sequence IN
         (SELECT max(tag.sequence) FROM tag JOIN build ON build.id = tag.build
          WHERE tag.template = ? AND state = 'ready' GROUP BY tag.name)
       ORDER BY name`,
      templateId,
    );
  }

  /** How many names a template would have with these. */
  countWith(templateId: string, names: readonly string[]): number {
    const all = this.query(
      "SELECT name FROM tag WHERE template = ? UNION SELECT value FROM json_each(?)",
      templateId,
      JSON.stringify(names),
    );
    return all.length;
  }
}

/** Which entries of a log are wanted. */
interface LogPage {
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

const build = buildRecord.extend({
  /** Place in the order of all. */
  sequence: z.number().default(0),
  /** That of its result. */
  image: z.string().optional(),
});

const RESTARTED: BuildReason = { message: "The server restarted during this build; build again" };
const EXPIRED: BuildReason = { message: "The build was not started in time" };
const LOST: BuildReason = { message: "The image of this build is lost; build again" };

/** The builds of all templates. An end is final: nothing changes a ready or failed build but the loss of its image. */
export class BuildTable extends Table<typeof build> {
  constructor(database: DatabaseSync) {
    super(database, { name: "build", schema: build, columns: { templateId: "template" } });
  }

  /** Adds a waiting one. */
  add(wanted: Pick<BuildRecord, "id" | "templateId" | "backend" | "limits">, nowMs: number): void {
    this.insert({ ...wanted, state: "waiting", createdAtMs: nowMs, updatedAtMs: nowMs });
  }

  /** Those of a template, newest first. @param before sequence that all of them are older than. */
  list(
    templateId: string,
    { limit, before = Number.MAX_SAFE_INTEGER }: { readonly limit?: number; readonly before?: number } = {},
  ) {
    return this.all({ templateId, sequence: { "<": before } }, { by: "sequence DESC", limit });
  }

  /** How many of a tenant's are waiting or building. */
  countUnfinished(tenant: string): number {
    const [row] = this.query(
      `SELECT count(*) AS count FROM build JOIN template ON template.id = build.template
       WHERE state IN ('waiting', 'building') AND owner = ?`,
      tenant,
    );
    return Number(row?.["count"]);
  }

  /** Those of a template that are waiting or building. */
  unfinished(templateId: string): readonly BuildRecord[] {
    return this.all({ templateId, state: ["waiting", "building"] });
  }

  /** Those of its template that are waiting or building and have a tag of this build. */
  rivals(id: string): readonly BuildRecord[] {
    return this.select(
      `WHERE state IN ('waiting', 'building') AND id <> ?1
         AND template = (SELECT template FROM build WHERE id = ?1)
         AND id IN (SELECT other.build FROM tag AS other JOIN tag AS own USING (template, name) WHERE own.build = ?1)`,
      id,
    );
  }

  /** Newest ready build with a tag. */
  tagged(templateId: string, tag: string): BuildRecord | undefined {
    return this.#tagged("AND state = 'ready'", templateId, tag);
  }

  /** Newest build with a tag, ready or not. */
  newest(templateId: string, tag: string): BuildRecord | undefined {
    return this.#tagged("", templateId, tag);
  }

  #tagged(condition: string, templateId: string, tag: string): BuildRecord | undefined {
    const [found] = this.select(
      `JOIN tag ON tag.build = build.id
       WHERE tag.template = ? AND tag.name = ? ${condition} ORDER BY tag.sequence DESC LIMIT 1`,
      templateId,
      tag,
    );
    return found;
  }

  /** @returns false when it is not waiting. */
  start(id: string, nowMs: number): boolean {
    return this.update({ id, state: "waiting" }, { state: "building", updatedAtMs: nowMs }) > 0;
  }

  /** @param limits in place of those that it was asked for with. @returns false when it is not building any more. */
  finish(id: string, result: BuildResult, nowMs: number, limits?: BuildLimits): boolean {
    const ready = { state: "ready", image: result.image, result, ...(limits && { limits }) } as const;
    return this.update({ id, state: "building" }, { ...ready, ...endedAt(nowMs) }) > 0;
  }

  /** @returns false when it has ended already. */
  fail(id: string, reason: BuildReason, nowMs: number): boolean {
    const failed = { state: "error", reason, ...endedAt(nowMs) } as const;
    return this.update({ id, state: ["waiting", "building"] }, failed) > 0;
  }

  /** Fails those that the last server was building. */
  failInterrupted(nowMs: number): void {
    this.update({ state: "building" }, { state: "error", reason: RESTARTED, ...endedAt(nowMs) });
  }

  /** Fails those that have been waiting since before a time. */
  failWaiting(sinceMs: number, nowMs: number): void {
    const waiting = { state: "waiting", createdAtMs: { "<=": sinceMs } } as const;
    this.update(waiting, { state: "error", reason: EXPIRED, ...endedAt(nowMs) });
  }

  /** Fails those whose image is lost. */
  failLost(image: ImageId, nowMs: number): void {
    const lost = { state: "error", reason: LOST, image: undefined, result: undefined } as const;
    this.update({ image }, { ...lost, updatedAtMs: nowMs });
  }

  /** Removes ended builds of a template that no tag leads to, but for the newest ones. */
  forget(templateId: string, kept: number): void {
    this.run(
      `DELETE FROM build WHERE template = ?1 AND state IN ('ready', 'error') AND sequence <=
         (SELECT sequence FROM build WHERE template = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)
       AND id NOT IN
         (SELECT build FROM (SELECT tag.build, max(tag.sequence) FROM tag JOIN build ON build.id = tag.build
          WHERE tag.template = ?1 AND state = 'ready' GROUP BY tag.name))`,
      templateId,
      kept,
    );
  }
}

function endedAt(nowMs: number) {
  return { updatedAtMs: nowMs, finishedAtMs: nowMs };
}
