import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, Table, transaction } from "@coppice/core";
import { z } from "zod";
import type { BuildResult } from "../model/build-context.js";
import { BuildTable } from "./build-table.js";
import { ImageTable, LayerTable } from "./image-table.js";
import { LogTable } from "./log-table.js";
import { MIGRATIONS } from "./migrations.js";
import { TagTable } from "./tag-table.js";
import { type TemplateRecord, templateRecord } from "../model/template-record.js";

/** The templates of all tenants. A template goes with its builds, their tags and logs. */
class TemplateTable extends Table<typeof templateRecord> {
  constructor(database: DatabaseSync) {
    super(database, { name: "template", schema: templateRecord });
  }

  /** Those of a tenant, or of all, oldest first. */
  list(where: { readonly owner?: string } = {}): readonly TemplateRecord[] {
    return this.all(where, { by: "created_at_ms, id" });
  }

  /** Counts a sandbox of it. Nothing happens for one that is not here. */
  spawned(id: string, nowMs: number): void {
    const sql = "UPDATE template SET spawn_count = spawn_count + 1, last_spawned_at_ms = ? WHERE id = ?";
    this.run(sql, nowMs, id);
  }
}

const SECRET_BYTES = 32;

/** A build of another server's template whose files are here. */
const copy = z.object({
  /** Of the build, a UUID. */
  id: z.string(),
  image: z.string(),
  result: z.custom<BuildResult>(),
  usedAtMs: z.number(),
});

/** An archive of files that a tenant has uploaded for COPY steps. */
const upload = z.object({
  tenant: z.string(),
  /** 64 hexadecimal digits that its client chose. */
  hash: z.string(),
  bytes: z.number(),
  /** Milliseconds since the Unix epoch. */
  usedAtMs: z.number(),
});

/**
 * Templates, builds, tags, logs, layers, images, copies and uploads in one SQLite file. Committed writes survive the end of this
 * process.
 */
export class TemplatesStore {
  readonly #database: DatabaseSync;
  readonly templates: TemplateTable;
  readonly builds: BuildTable;
  readonly tags: TagTable;
  readonly logs: LogTable;
  readonly images: ImageTable;
  readonly layers: LayerTable;
  readonly copies: Table<typeof copy>;
  readonly uploads: Table<typeof upload>;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string) {
    const database = openDatabase({ path: join(dataDir, "templates.sqlite"), migrations: MIGRATIONS });
    this.#database = database;
    this.templates = new TemplateTable(database);
    this.builds = new BuildTable(database);
    this.tags = new TagTable(database);
    this.logs = new LogTable(database);
    this.images = new ImageTable(database);
    this.layers = new LayerTable(database);
    this.copies = new Table(database, { name: "copy", schema: copy });
    this.uploads = new Table(database, { name: "upload", schema: upload });
  }

  /** Runs writes all or nothing. */
  atOnce<T>(run: () => T): T {
    return transaction(this.#database, run);
  }

  /** Keeps the images of a template's own builds as copies, for when another server keeps the template. */
  copyBuildsOf(templateId: string, nowMs: number): void {
    this.copies.run(
      `INSERT OR IGNORE INTO copy (id, image, result, used_at_ms)
         SELECT id, image, result, ? FROM build WHERE template = ? AND image IS NOT NULL`,
      nowMs,
      templateId,
    );
  }

  /** A key that no other installation has, made at the first call. */
  secret(name: string): Uint8Array {
    this.#database
      .prepare("INSERT INTO secret (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING")
      .run(name, randomBytes(SECRET_BYTES));
    return this.#database.prepare("SELECT value FROM secret WHERE name = ?").get(name)?.[
      "value"
    ] as Uint8Array;
  }

  close(): void {
    this.#database.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
