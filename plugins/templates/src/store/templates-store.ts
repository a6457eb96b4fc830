import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, transaction } from "@coppice/core";
import { BuildTable } from "./build-table.js";
import { CopyTable } from "./copy-table.js";
import { ImageTable } from "./image-table.js";
import { LogTable } from "./log-table.js";
import { MIGRATIONS } from "./migrations.js";
import { TagTable } from "./tag-table.js";
import { TemplateTable } from "./template-table.js";
import { UploadTable } from "./upload-table.js";

const SECRET_BYTES = 32;

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
  readonly copies: CopyTable;
  readonly uploads: UploadTable;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string) {
    const database = openDatabase({ path: join(dataDir, "templates.sqlite"), migrations: MIGRATIONS });
    this.#database = database;
    this.templates = new TemplateTable(database);
    this.builds = new BuildTable(database);
    this.tags = new TagTable(database);
    this.logs = new LogTable(database);
    this.images = new ImageTable(database);
    this.copies = new CopyTable(database);
    this.uploads = new UploadTable(database);
  }

  /** Runs writes all or nothing. */
  atOnce<T>(run: () => T): T {
    return transaction(this.#database, run);
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
