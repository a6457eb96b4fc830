import type { DatabaseSync } from "node:sqlite";
import { type Inferred, Table } from "@coppice/core";
import { z } from "zod";

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
