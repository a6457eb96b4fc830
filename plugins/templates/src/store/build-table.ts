import type { DatabaseSync } from "node:sqlite";
import { Table } from "@coppice/core";
import type { ImageId } from "@coppice/core/backend";
import { z } from "zod";
import type { BuildResult } from "../model/build-context.js";
import { type BuildLimits, type BuildReason, type BuildRecord, buildRecord } from "../model/build-record.js";

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
