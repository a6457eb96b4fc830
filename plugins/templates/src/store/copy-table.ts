import type { DatabaseSync } from "node:sqlite";
import type { ImageId } from "@coppice/core";
import type { BuildResult } from "../model/build-context.js";

/** A build of another server's template whose files are here. */
export interface CopyRecord {
  /** Of the build, a UUID. */
  readonly id: string;
  readonly result: BuildResult;
}

/** The copies that this server has fetched. */
export class CopyTable {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  add({ id, result }: CopyRecord, nowMs: number): void {
    this.#statements.add.run(id, result.image, JSON.stringify(result), nowMs);
  }

  find(id: string): CopyRecord | undefined {
    const row = this.#statements.find.get(id);
    if (row === undefined) return undefined;
    const result = JSON.parse(String(row["result"])) as BuildResult;
    return { id, result: { ...result, start: result.start } };
  }

  /** Keeps the images of a template's own builds as copies, for when another server keeps the template. */
  addOwn(templateId: string, nowMs: number): void {
    this.#statements.addOwn.run(nowMs, templateId);
  }

  /** Ids of all. */
  ids(): readonly string[] {
    return this.#statements.ids.all().map(({ id }) => String(id));
  }

  used(id: string, nowMs: number): void {
    this.#statements.used.run(nowMs, id);
  }

  remove(id: string): void {
    this.#statements.remove.run(id);
  }

  removeOf(image: ImageId): void {
    this.#statements.removeOf.run(image);
  }

  /** Removes those that have not been used since a time. */
  forgetBefore(usedAtMs: number): void {
    this.#statements.forget.run(usedAtMs);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare("INSERT OR REPLACE INTO copy (id, image, result, used_at_ms) VALUES (?, ?, ?, ?)"),
    addOwn: database.prepare(
      `INSERT OR IGNORE INTO copy (id, image, result, used_at_ms)
         SELECT id, image, result, ? FROM build WHERE template = ? AND image IS NOT NULL`,
    ),
    find: database.prepare("SELECT result FROM copy WHERE id = ?"),
    ids: database.prepare("SELECT id FROM copy"),
    used: database.prepare("UPDATE copy SET used_at_ms = ? WHERE id = ?"),
    remove: database.prepare("DELETE FROM copy WHERE id = ?"),
    removeOf: database.prepare("DELETE FROM copy WHERE image = ?"),
    forget: database.prepare("DELETE FROM copy WHERE used_at_ms < ?"),
  };
}
