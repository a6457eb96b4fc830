import type { DatabaseSync, SQLInputValue } from "node:sqlite";
import type { SandboxEvent } from "@coppice/core";
import { type EventBody, eventBody } from "./event-body.js";
import type { EventsConfig } from "../events-config.js";
import type { Page } from "./parse-page.js";

interface EventQuery extends Page {
  readonly tenant: string;
  readonly sandbox?: string | undefined;
  /** Names of types; all when empty. */
  readonly types: readonly string[];
}

/** Deleting row by row would double the cost of writing. */
const TRIMMED_EVERY = 64;

export class EventLog {
  readonly #database: DatabaseSync;
  readonly #config: EventsConfig;
  readonly #statements: ReturnType<typeof prepare>;
  readonly #grown = new Set<string>();
  #untrimmed = TRIMMED_EVERY;

  constructor(database: DatabaseSync, config: EventsConfig) {
    this.#database = database;
    this.#config = config;
    this.#statements = prepare(database);
  }

  /** @returns the body of the event; undefined for one that was added before. */
  add(event: SandboxEvent): EventBody | undefined {
    const body = eventBody(event);
    const { id, owner, sandboxId, atMs } = event;
    const { changes } = this.#statements.add.run(id, owner, sandboxId, body.type, atMs, JSON.stringify(body));
    this.#grown.add(owner);
    this.#untrimmed += 1;
    return changes === 0 ? undefined : body;
  }

  /** Removes events beyond the limits, now and then. */
  trim(nowMs: number): void {
    if (this.#untrimmed < TRIMMED_EVERY) return;
    this.#untrimmed = 0;
    const { maxAge, maxEvents } = this.#config;
    this.#statements.forgetOld.run(nowMs - maxAge);
    for (const tenant of this.#grown) this.#statements.forget.run({ tenant, kept: maxEvents });
    this.#grown.clear();
  }

  list(query: EventQuery): readonly EventBody[] {
    const { tenant, sandbox, types, limit, offset, oldestFirst } = query;
    const conditions = ["tenant = ?"];
    const values: SQLInputValue[] = [tenant];
    if (sandbox !== undefined) {
      conditions.push("sandbox = ?");
      values.push(sandbox);
    }
    if (types.length > 0) {
      conditions.push(`type IN (${types.map(() => "?").join(", ")})`);
      values.push(...types);
    }
    return this.#database
      .prepare(
        `SELECT body FROM event WHERE ${conditions.join(" AND ")}
         ORDER BY sequence ${oldestFirst ? "ASC" : "DESC"} LIMIT ? OFFSET ?`,
      )
      .all(...values, limit, offset)
      .map(({ body }) => JSON.parse(String(body)) as EventBody);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare(
      `INSERT INTO event (id, tenant, sandbox, type, at_ms, body) VALUES (?, ?, ?, ?, ?, ?)
       ON CONFLICT (id) DO NOTHING`,
    ),
    forgetOld: database.prepare("DELETE FROM event WHERE at_ms < ?"),
    forget: database.prepare(
      `DELETE FROM event WHERE tenant = :tenant AND sequence <=
         (SELECT sequence FROM event WHERE tenant = :tenant ORDER BY sequence DESC LIMIT 1 OFFSET :kept)`,
    ),
  };
}
