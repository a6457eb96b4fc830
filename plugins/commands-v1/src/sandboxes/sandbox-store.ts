import type { DatabaseSync, SQLOutputValue } from "node:sqlite";

/** `persistent`: its files survive a stop. An `ephemeral` sandbox is deleted instead. */
export type Tier = "ephemeral" | "persistent";

/** What this plugin knows of a sandbox besides its record. Times are in milliseconds. */
export interface NamedSandbox {
  readonly id: string;
  readonly owner: string;
  /** Unique for its owner. */
  readonly name: string;
  readonly tier: Tier;
  /** Idle time after which it stops; 0 = never. */
  readonly autoStopMs: number;
  /** Time of its deletion, since the Unix epoch; undefined = the end of its record. */
  readonly deadlineMs: number | undefined;
  readonly workdir: string | undefined;
}

/** The named sandboxes of an installation. */
export class SandboxStore {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  /** Adds or replaces a sandbox. @throws Error when its owner has another one of that name. */
  write({ id, owner, name, tier, autoStopMs, deadlineMs, workdir }: NamedSandbox): void {
    this.#statements.write.run(id, owner, name, tier, autoStopMs, deadlineMs ?? null, workdir ?? null);
  }

  remove(id: string): void {
    this.#statements.remove.run(id);
  }

  find(id: string): NamedSandbox | undefined {
    const row = this.#statements.find.get(id);
    return row && parse(row);
  }

  named(owner: string, name: string): NamedSandbox | undefined {
    const row = this.#statements.named.get(owner, name);
    return row && parse(row);
  }

  all(): readonly NamedSandbox[] {
    return this.#statements.all.all().map(parse);
  }
}

function prepare(database: DatabaseSync) {
  return {
    write: database.prepare(
      `INSERT INTO sandbox (id, owner, name, tier, auto_stop_ms, deadline_ms, workdir) VALUES (?, ?, ?, ?, ?, ?, ?)
       ON CONFLICT (id) DO UPDATE SET name = excluded.name, tier = excluded.tier, workdir = excluded.workdir,
         auto_stop_ms = excluded.auto_stop_ms, deadline_ms = excluded.deadline_ms`,
    ),
    remove: database.prepare("DELETE FROM sandbox WHERE id = ?"),
    find: database.prepare("SELECT * FROM sandbox WHERE id = ?"),
    named: database.prepare("SELECT * FROM sandbox WHERE owner = ? AND name = ?"),
    all: database.prepare("SELECT * FROM sandbox"),
  };
}

function parse(row: Record<string, SQLOutputValue>): NamedSandbox {
  const deadline = row["deadline_ms"];
  const workdir = row["workdir"];
  return {
    id: String(row["id"]),
    owner: String(row["owner"]),
    name: String(row["name"]),
    tier: row["tier"] === "persistent" ? "persistent" : "ephemeral",
    autoStopMs: Number(row["auto_stop_ms"]),
    deadlineMs: deadline === null ? undefined : Number(deadline),
    workdir: workdir === null ? undefined : String(workdir),
  };
}
