import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import type { ImageId } from "@coppice/core";
import type { BuildResult } from "../model/build-context.js";
import type { BuildLimits, BuildReason, BuildRecord, BuildState } from "../model/build-record.js";

/** A build with its place in the order of all. */
export interface OrderedBuild extends BuildRecord {
  readonly sequence: number;
}

const RESTARTED: BuildReason = {
  message: "The server restarted during this build; build again",
  step: undefined,
};
const EXPIRED: BuildReason = { message: "The build was not started in time", step: undefined };

/** The builds of all templates. An end is final: nothing changes a ready or failed build but the loss of its image. */
export class BuildTable {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  /** Adds a waiting one. */
  add(
    { id, templateId, backend, limits }: Pick<BuildRecord, "id" | "templateId" | "backend" | "limits">,
    nowMs: number,
  ): void {
    this.#statements.add.run(id, templateId, backend, JSON.stringify(limits), nowMs, nowMs);
  }

  find(id: string): BuildRecord | undefined {
    return one(this.#statements.find.get(id));
  }

  /** Those of a template, newest first. @param before sequence that all of them are older than. */
  list(
    templateId: string,
    { limit, before }: { readonly limit: number; readonly before: number },
  ): readonly OrderedBuild[] {
    return this.#statements.list.all(templateId, before, limit).map(parse);
  }

  /** Those that have an image. */
  withImage(image: ImageId): readonly BuildRecord[] {
    return this.#statements.withImage.all(image).map(parse);
  }

  count(templateId: string): number {
    return Number(this.#statements.count.get(templateId)?.["count"]);
  }

  /** How many of a tenant's are waiting or building. */
  countUnfinished(tenant: string): number {
    return Number(this.#statements.countUnfinished.get(tenant)?.["count"]);
  }

  /** Those of a template that are waiting or building. */
  unfinished(templateId: string): readonly BuildRecord[] {
    return this.#statements.unfinished.all(templateId).map(parse);
  }

  /** Those of its template that are waiting or building and have a tag of this build. */
  rivals(id: string): readonly BuildRecord[] {
    return this.#statements.rivals.all(id, id, id).map(parse);
  }

  /** Newest ready build with a tag. */
  tagged(templateId: string, tag: string): BuildRecord | undefined {
    return one(this.#statements.tagged.get(templateId, tag));
  }

  /** Newest build with a tag, ready or not. */
  newest(templateId: string, tag: string): BuildRecord | undefined {
    return one(this.#statements.newest.get(templateId, tag));
  }

  /** @returns false when it is not waiting. */
  start(id: string, nowMs: number): boolean {
    return this.#statements.start.run(nowMs, id).changes > 0;
  }

  /** @param limits in place of those that it was asked for with. @returns false when it is not building any more. */
  finish(id: string, result: BuildResult, nowMs: number, limits?: BuildLimits): boolean {
    const changed = limits === undefined ? null : JSON.stringify(limits);
    const { finish } = this.#statements;
    return finish.run(result.image, JSON.stringify(result), changed, nowMs, nowMs, id).changes > 0;
  }

  /** @returns false when it has ended already. */
  fail(id: string, reason: BuildReason, nowMs: number): boolean {
    return this.#statements.fail.run(JSON.stringify(reason), nowMs, nowMs, id).changes > 0;
  }

  /** Adds one of a server that is gone, which is ready. */
  takeOver(
    {
      id,
      templateId,
      backend,
      limits,
      digest,
    }: Pick<BuildRecord, "id" | "templateId" | "backend" | "limits" | "digest">,
    nowMs: number,
  ): void {
    const { takeOver } = this.#statements;
    takeOver.run(id, templateId, backend, JSON.stringify(limits), digest ?? null, nowMs, nowMs, nowMs);
  }

  /** Notes the digest of its image in the registry of the fleet. */
  pushed(id: string, digest: string): void {
    this.#statements.pushed.run(digest, id);
  }

  /** Fails those that the last server was building. */
  failInterrupted(nowMs: number): void {
    this.#statements.failInterrupted.run(JSON.stringify(RESTARTED), nowMs, nowMs);
  }

  /** Fails those that have been waiting since before a time. */
  failWaiting(sinceMs: number, nowMs: number): void {
    this.#statements.failWaiting.run(JSON.stringify(EXPIRED), nowMs, nowMs, sinceMs);
  }

  /** Fails those whose image is lost. */
  failLost(image: ImageId, nowMs: number): void {
    const reason: BuildReason = { message: "The image of this build is lost; build again", step: undefined };
    this.#statements.failLost.run(JSON.stringify(reason), nowMs, image);
  }

  /** Removes ended builds of a template that no tag leads to, but for the newest ones. */
  forget(templateId: string, kept: number): void {
    this.#statements.forget.run({ template: templateId, kept });
  }
}

function prepare(database: DatabaseSync) {
  const ended = "updated_at_ms = ?, finished_at_ms = ?";
  return {
    add: database.prepare(
      `INSERT INTO build (id, template, backend, limits, state, created_at_ms, updated_at_ms)
       VALUES (?, ?, ?, ?, 'waiting', ?, ?)`,
    ),
    find: database.prepare("SELECT * FROM build WHERE id = ?"),
    list: database.prepare(
      "SELECT * FROM build WHERE template = ? AND sequence < ? ORDER BY sequence DESC LIMIT ?",
    ),
    withImage: database.prepare("SELECT * FROM build WHERE image = ?"),
    count: database.prepare("SELECT count(*) AS count FROM build WHERE template = ?"),
    countUnfinished: database.prepare(
      `SELECT count(*) AS count FROM build JOIN template ON template.id = build.template
       WHERE state IN ('waiting', 'building') AND owner = ?`,
    ),
    unfinished: database.prepare(
      "SELECT * FROM build WHERE template = ? AND state IN ('waiting', 'building')",
    ),
    rivals: database.prepare(
      `SELECT * FROM build WHERE state IN ('waiting', 'building') AND id <> ?
         AND template = (SELECT template FROM build WHERE id = ?)
         AND id IN (SELECT other.build FROM tag AS other JOIN tag AS own USING (template, name) WHERE own.build = ?)`,
    ),
    tagged: database.prepare(
      `SELECT build.* FROM tag JOIN build ON build.id = tag.build
       WHERE tag.template = ? AND tag.name = ? AND state = 'ready' ORDER BY tag.sequence DESC LIMIT 1`,
    ),
    newest: database.prepare(
      `SELECT build.* FROM tag JOIN build ON build.id = tag.build
       WHERE tag.template = ? AND tag.name = ? ORDER BY tag.sequence DESC LIMIT 1`,
    ),
    start: database.prepare(
      "UPDATE build SET state = 'building', updated_at_ms = ? WHERE id = ? AND state = 'waiting'",
    ),
    finish: database.prepare(
      `UPDATE build SET state = 'ready', image = ?, result = ?, limits = coalesce(?, limits), ${ended}
       WHERE id = ? AND state = 'building'`,
    ),
    takeOver: database.prepare(
      `INSERT INTO build (id, template, backend, limits, state, digest, created_at_ms, updated_at_ms, finished_at_ms)
       VALUES (?, ?, ?, ?, 'ready', ?, ?, ?, ?)`,
    ),
    pushed: database.prepare("UPDATE build SET digest = ? WHERE id = ?"),
    fail: database.prepare(
      `UPDATE build SET state = 'error', reason = ?, ${ended} WHERE id = ? AND state IN ('waiting', 'building')`,
    ),
    failInterrupted: database.prepare(
      `UPDATE build SET state = 'error', reason = ?, ${ended} WHERE state = 'building'`,
    ),
    failWaiting: database.prepare(
      `UPDATE build SET state = 'error', reason = ?, ${ended} WHERE state = 'waiting' AND created_at_ms <= ?`,
    ),
    failLost: database.prepare(
      `UPDATE build SET state = 'error', image = NULL, result = NULL, reason = ?, updated_at_ms = ? WHERE image = ?`,
    ),
    forget: database.prepare(
      `DELETE FROM build WHERE template = :template AND state IN ('ready', 'error') AND sequence <=
         (SELECT sequence FROM build WHERE template = :template ORDER BY sequence DESC LIMIT 1 OFFSET :kept)
       AND id NOT IN
         (SELECT build FROM (SELECT tag.build, max(tag.sequence) FROM tag JOIN build ON build.id = tag.build
          WHERE tag.template = :template AND state = 'ready' GROUP BY tag.name))`,
    ),
  };
}

function one(row: Record<string, SQLOutputValue> | undefined): BuildRecord | undefined {
  return row && parse(row);
}

function parse(row: Record<string, SQLOutputValue>): OrderedBuild {
  const json = <T>(name: string): T | undefined =>
    row[name] === null ? undefined : (JSON.parse(String(row[name])) as T);
  const finishedAtMs = row["finished_at_ms"];
  return {
    sequence: Number(row["sequence"]),
    id: String(row["id"]),
    templateId: String(row["template"]),
    backend: String(row["backend"]),
    state: row["state"] as BuildState,
    limits: JSON.parse(String(row["limits"])) as BuildLimits,
    result: json<BuildResult>("result"),
    digest: row["digest"] === null ? undefined : String(row["digest"]),
    reason: json<BuildReason>("reason"),
    createdAtMs: Number(row["created_at_ms"]),
    updatedAtMs: Number(row["updated_at_ms"]),
    finishedAtMs: finishedAtMs === null ? undefined : Number(finishedAtMs),
  };
}
