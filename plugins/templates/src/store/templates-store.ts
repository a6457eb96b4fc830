import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, Table, transaction } from "@coppice/core";
import { z } from "zod";
import type { BuildResult } from "../model/layer.js";
import { BuildTable, LogTable, TagTable } from "./build-table.js";
import { ImageTable, LayerTable } from "./image-table.js";
import { type TemplateRecord, templateRecord } from "../model/template-record.js";

/** Each migrates a database from that version to the next. */
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE template (
     id TEXT PRIMARY KEY,
     owner TEXT NOT NULL,
     namespace TEXT NOT NULL,
     alias TEXT NOT NULL,
     is_public INTEGER NOT NULL DEFAULT 0,
     created_at_ms REAL NOT NULL,
     updated_at_ms REAL NOT NULL,
     spawn_count INTEGER NOT NULL DEFAULT 0,
     last_spawned_at_ms REAL,
     UNIQUE (owner, alias)
   ) STRICT;
   CREATE INDEX template_by_name ON template (namespace, alias);
   CREATE TABLE build (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL UNIQUE,
     template TEXT NOT NULL REFERENCES template (id) ON DELETE CASCADE,
     backend TEXT NOT NULL,
     state TEXT NOT NULL,
     limits TEXT NOT NULL,
     image TEXT,
     result TEXT,
     reason TEXT,
     created_at_ms REAL NOT NULL,
     updated_at_ms REAL NOT NULL,
     finished_at_ms REAL
   ) STRICT;
   CREATE INDEX build_by_template ON build (template, sequence);
   CREATE INDEX build_by_state ON build (state);
   CREATE INDEX build_by_image ON build (image);
   CREATE TABLE tag (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     template TEXT NOT NULL REFERENCES template (id) ON DELETE CASCADE,
     name TEXT NOT NULL,
     build TEXT NOT NULL REFERENCES build (id) ON DELETE CASCADE,
     assigned_at_ms REAL NOT NULL,
     UNIQUE (template, name, build)
   ) STRICT;
   CREATE INDEX tag_by_name ON tag (template, name, sequence);
   CREATE INDEX tag_by_build ON tag (build);
   CREATE TABLE log_entry (
     build TEXT NOT NULL REFERENCES build (id) ON DELETE CASCADE,
     number INTEGER NOT NULL,
     at_ms REAL NOT NULL,
     level INTEGER NOT NULL,
     message TEXT NOT NULL,
     step TEXT,
     PRIMARY KEY (build, number)
   ) STRICT, WITHOUT ROWID;
   CREATE TABLE layer (
     tenant TEXT NOT NULL,
     backend TEXT NOT NULL,
     key TEXT NOT NULL,
     image TEXT NOT NULL,
     content TEXT NOT NULL,
     used_at_ms REAL NOT NULL,
     PRIMARY KEY (tenant, backend, key)
   ) STRICT, WITHOUT ROWID;
   CREATE INDEX layer_by_image ON layer (image);
   CREATE TABLE image (
     id TEXT PRIMARY KEY,
     backend TEXT NOT NULL,
     tenant TEXT NOT NULL,
     bytes INTEGER
   ) STRICT;
   CREATE INDEX image_by_tenant ON image (tenant);
   CREATE TABLE upload (
     tenant TEXT NOT NULL,
     hash TEXT NOT NULL,
     bytes INTEGER NOT NULL,
     used_at_ms REAL NOT NULL,
     PRIMARY KEY (tenant, hash)
   ) STRICT, WITHOUT ROWID;
   CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;`,
  // Packages of an image, each in a line.
  `ALTER TABLE image ADD COLUMN contents TEXT;`,
  // The image of a build in the registry of a fleet, and builds of other servers.
  `ALTER TABLE build ADD COLUMN digest TEXT;
   CREATE TABLE copy (
     id TEXT PRIMARY KEY,
     image TEXT NOT NULL,
     result TEXT NOT NULL,
     used_at_ms REAL NOT NULL
   ) STRICT;
   CREATE INDEX copy_by_image ON copy (image);`,
];

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
