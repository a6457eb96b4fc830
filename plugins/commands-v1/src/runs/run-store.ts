import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import type { CommandPhase } from "@coppice/plugin-commands";

/** A one-shot run: one command in a sandbox of its own. Times are in milliseconds. */
export interface Run {
  readonly id: string;
  readonly owner: string;
  readonly sandboxId: string;
  readonly commandId: string;
  readonly phase: CommandPhase;
  /** Undefined while it runs, and when the exit is unknown. */
  readonly exitCode?: number | undefined;
  readonly error?: string | undefined;
  /** Since the Unix epoch. */
  readonly askedAtMs: number;
  /** Duration of the sandbox's creation. */
  readonly createMs: number;
  /** Duration of the command; undefined while it runs. */
  readonly execMs?: number | undefined;
  /** Duration of the sandbox's removal; undefined until it is over. */
  readonly cleanupMs?: number | undefined;
}

/** The one-shot runs of an installation. */
export class RunStore {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  /** Adds or replaces a run. */
  write(run: Run): void {
    const { id, owner, sandboxId, commandId, phase, askedAtMs, createMs } = run;
    const rest = [run.exitCode, run.error, run.execMs, run.cleanupMs].map((value) => value ?? null);
    this.#statements.write.run(id, owner, sandboxId, commandId, phase, askedAtMs, createMs, ...rest);
  }

  find(owner: string, id: string): Run | undefined {
    const row = this.#statements.find.get(owner, id);
    return row && parse(row);
  }

  /** Runs whose end is not recorded. */
  unfinished(): readonly Run[] {
    return this.#statements.unfinished.all().map(parse);
  }

  remove(id: string): void {
    this.#statements.remove.run(id);
  }

  /** Removes the ended runs that were asked for before a time. */
  prune(beforeMs: number): void {
    this.#statements.prune.run(beforeMs);
  }
}

function prepare(database: DatabaseSync) {
  return {
    write: database.prepare(
      `REPLACE INTO run (id, owner, sandbox, command, phase, asked_at_ms, create_ms, exit_code, error, exec_ms, cleanup_ms)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    ),
    find: database.prepare("SELECT * FROM run WHERE owner = ? AND id = ?"),
    unfinished: database.prepare("SELECT * FROM run WHERE cleanup_ms IS NULL"),
    remove: database.prepare("DELETE FROM run WHERE id = ?"),
    prune: database.prepare("DELETE FROM run WHERE cleanup_ms IS NOT NULL AND asked_at_ms < ?"),
  };
}

const PHASES: readonly string[] = ["running", "exited", "killed", "lost"] satisfies readonly CommandPhase[];

function parse(row: Record<string, SQLOutputValue>): Run {
  const numberIn = (name: string) => (row[name] === null ? undefined : Number(row[name]));
  const phase = String(row["phase"]);
  if (!PHASES.includes(phase)) throw new Error(`the store has a run in the unknown phase '${phase}'`);
  return {
    id: String(row["id"]),
    owner: String(row["owner"]),
    sandboxId: String(row["sandbox"]),
    commandId: String(row["command"]),
    phase: phase as CommandPhase,
    exitCode: numberIn("exit_code"),
    error: row["error"] === null ? undefined : String(row["error"]),
    askedAtMs: Number(row["asked_at_ms"]),
    createMs: Number(row["create_ms"]),
    execMs: numberIn("exec_ms"),
    cleanupMs: numberIn("cleanup_ms"),
  };
}
