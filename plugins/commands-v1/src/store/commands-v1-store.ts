import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, type Inferred, Table } from "@coppice/core";
import { z } from "zod";

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

/** What this plugin knows of a sandbox besides its record. Times are in milliseconds. */
export type NamedSandbox = Inferred<typeof namedSandbox>;

const namedSandbox = z.object({
  id: z.string(),
  owner: z.string(),
  /** Unique for its owner. */
  name: z.string(),
  /** `persistent`: its files survive a stop. An `ephemeral` sandbox is deleted instead. */
  tier: z.enum(["ephemeral", "persistent"]),
  /** Idle time after which it stops; 0 = never. */
  autoStopMs: z.number(),
  /** Time of its deletion, since the Unix epoch; undefined = the end of its record. */
  deadlineMs: z.number().optional(),
  workdir: z.string().optional(),
});

/** A one-shot run: one command in a sandbox of its own. Times are in milliseconds. */
export type Run = Inferred<typeof run>;

const run = z.object({
  id: z.string(),
  owner: z.string(),
  sandboxId: z.string(),
  commandId: z.string(),
  phase: z.enum(["running", "exited", "killed", "lost"]),
  /** Undefined while it runs, and when the exit is unknown. */
  exitCode: z.number().optional(),
  error: z.string().optional(),
  /** Since the Unix epoch. */
  askedAtMs: z.number(),
  /** Duration of the sandbox's creation. */
  createMs: z.number(),
  /** Duration of the command; undefined while it runs. */
  execMs: z.number().optional(),
  /** Duration of the sandbox's removal; undefined until it is over. */
  cleanupMs: z.number().optional(),
});

/** Sandboxes and one-shot runs in one SQLite file. A write that has returned survives the end of this process. */
export class CommandsV1Store {
  readonly #database: DatabaseSync;
  readonly sandboxes: Table<typeof namedSandbox>;
  readonly runs: Table<typeof run>;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string) {
    this.#database = openDatabase({ path: join(dataDir, "commands-v1.sqlite"), migrations: MIGRATIONS });
    this.sandboxes = new Table(this.#database, { name: "sandbox", schema: namedSandbox });
    const columns = { sandboxId: "sandbox", commandId: "command" };
    this.runs = new Table(this.#database, { name: "run", schema: run, columns });
  }

  close(): void {
    this.#database.close();
  }
}
