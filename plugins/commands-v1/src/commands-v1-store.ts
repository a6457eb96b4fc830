import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase } from "@coppice/core";
import { RunStore } from "./runs/run-store.js";
import { SandboxStore } from "./sandboxes/sandbox-store.js";

/** Each migrates the file from that version to the next. */
const MIGRATIONS = [
  `CREATE TABLE sandbox (
     id TEXT PRIMARY KEY,
     owner TEXT NOT NULL,
     name TEXT NOT NULL,
     tier TEXT NOT NULL,
     auto_stop_ms REAL NOT NULL,
     deadline_ms REAL,
     workdir TEXT,
     UNIQUE (owner, name)
   ) STRICT;
   CREATE TABLE run (
     id TEXT PRIMARY KEY,
     owner TEXT NOT NULL,
     sandbox TEXT NOT NULL,
     command TEXT NOT NULL,
     phase TEXT NOT NULL,
     exit_code INTEGER,
     error TEXT,
     asked_at_ms REAL NOT NULL,
     create_ms REAL NOT NULL,
     exec_ms REAL,
     cleanup_ms REAL
   ) STRICT;`,
];

/** Sandboxes and one-shot runs in one SQLite file. A write that has returned survives the end of this process. */
export class CommandsV1Store {
  readonly #database: DatabaseSync;
  readonly sandboxes: SandboxStore;
  readonly runs: RunStore;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string) {
    this.#database = openDatabase({ path: join(dataDir, "commands-v1.sqlite"), migrations: MIGRATIONS });
    this.sandboxes = new SandboxStore(this.#database);
    this.runs = new RunStore(this.#database);
  }

  close(): void {
    this.#database.close();
  }
}
