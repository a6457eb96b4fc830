import type { DatabaseSync } from "node:sqlite";

/** A tag of a template, and the build that it leads to. */
export interface Tag {
  readonly name: string;
  readonly buildId: string;
  /** Milliseconds since the Unix epoch. */
  readonly assignedAtMs: number;
}

/** Assignments of tags to builds. Of a tag's ready builds the one that got it last has it. */
export class TagTable {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  assign(templateId: string, name: string, buildId: string, nowMs: number): void {
    // In place of an earlier assignment to the same build.
    this.#statements.assign.run(templateId, name, buildId, nowMs);
  }

  /** Tags with a ready build, by name. */
  list(templateId: string): readonly Tag[] {
    return this.#statements.list.all(templateId).map(({ name, build, assigned_at_ms: assignedAtMs }) => ({
      name: String(name),
      buildId: String(build),
      assignedAtMs: Number(assignedAtMs),
    }));
  }

  /** Those that a build got. */
  ofBuild(buildId: string): readonly string[] {
    return this.#statements.ofBuild.all(buildId).map(({ name }) => String(name));
  }

  /** How many names a template would have with these. */
  countWith(templateId: string, names: readonly string[]): number {
    const json = JSON.stringify(names);
    return Number(this.#statements.countWith.get(templateId, json)?.["count"]);
  }

  /** Takes tags from all builds of a template. */
  remove(templateId: string, names: readonly string[]): void {
    this.#statements.remove.run(templateId, JSON.stringify(names));
  }
}

function prepare(database: DatabaseSync) {
  return {
    assign: database.prepare(
      "INSERT OR REPLACE INTO tag (template, name, build, assigned_at_ms) VALUES (?, ?, ?, ?)",
    ),
    // SQLite takes the other columns from the row with the maximum.
    list: database.prepare(
      `SELECT tag.name, tag.build, tag.assigned_at_ms, max(tag.sequence) FROM tag JOIN build ON build.id = tag.build
       WHERE tag.template = ? AND state = 'ready' GROUP BY tag.name ORDER BY tag.name`,
    ),
    ofBuild: database.prepare("SELECT name FROM tag WHERE build = ?"),
    countWith: database.prepare(
      `SELECT count(*) AS count FROM
         (SELECT name FROM tag WHERE template = ? UNION SELECT value FROM json_each(?))`,
    ),
    remove: database.prepare(
      "DELETE FROM tag WHERE template = ? AND name IN (SELECT value FROM json_each(?))",
    ),
  };
}
