import { join } from "node:path";
import type { DatabaseSync, SQLInputValue, SQLOutputValue } from "node:sqlite";
import { openDatabase } from "@coppice/core";
import type { AccessConfig } from "../access-config.js";

export type Outcome = "allowed" | "denied" | "error";

/** One entry, without secrets. */
export interface AuditEvent {
  readonly id: number;
  readonly atMs: number;
  readonly requestId: string;
  readonly address: string;
  readonly method: string;
  /** Without the query; cut when it is long. */
  readonly path: string;
  /** The pattern of the route; `none` when it was refused before routing. */
  readonly route: string;
  readonly status: number;
  readonly outcome: Outcome;
  /** Undefined for unauthenticated clients. */
  readonly tenant: string | undefined;
  readonly principal: string | undefined;
  readonly scopes: readonly string[];
  readonly sandbox: string | undefined;
  /** Kind of the principal; undefined where its credential does not say. */
  readonly principalType: string | undefined;
  /** Subject that acted for the principal. */
  readonly actor: string | undefined;
}

interface AuditQuery {
  readonly tenant?: string | undefined;
  readonly outcome?: Outcome | undefined;
  readonly pathPrefix?: string | undefined;
  readonly limit: number;
  readonly offset: number;
  readonly oldestFirst: boolean;
}

type AuditLogOptions = AccessConfig["audit"] & { readonly dataDir: string };

const MIGRATIONS: readonly string[] = [
  `CREATE TABLE event (
     id INTEGER PRIMARY KEY AUTOINCREMENT,
     at_ms REAL NOT NULL,
     request_id TEXT NOT NULL,
     address TEXT NOT NULL,
     method TEXT NOT NULL,
     path TEXT NOT NULL,
     route TEXT NOT NULL,
     status INTEGER NOT NULL,
     outcome TEXT NOT NULL,
     tenant TEXT,
     principal TEXT,
     scopes TEXT NOT NULL,
     sandbox TEXT
   ) STRICT;
   CREATE INDEX event_by_tenant ON event (tenant, id);
   CREATE INDEX event_by_time ON event (at_ms);`,
  "ALTER TABLE event ADD COLUMN principal_type TEXT; ALTER TABLE event ADD COLUMN actor TEXT;",
];

// Named as the fields of an event.
const COLUMNS = `id, at_ms AS atMs, request_id AS requestId, address, method, path, route, status, outcome, tenant,
  principal, scopes, sandbox, principal_type AS principalType, actor`;

/** Deleting row by row would double the cost of writing. */
const TRIMMED_EVERY = 64;

/** The audit of an installation, in an SQLite file. Committed writes survive the end of this process. */
export class AuditLog {
  readonly #options: AuditLogOptions;
  readonly #database: DatabaseSync;
  readonly #statements: ReturnType<typeof prepare>;
  #untrimmed = TRIMMED_EVERY;

  /** @throws Error that names the file when it cannot be used. */
  constructor(options: AuditLogOptions) {
    this.#options = options;
    this.#database = openDatabase({ path: join(options.dataDir, "audit.sqlite"), migrations: MIGRATIONS });
    this.#statements = prepare(this.#database);
  }

  write(event: Omit<AuditEvent, "id">): void {
    const columns = Object.entries({ ...event, scopes: event.scopes.join(" ") });
    this.#statements.insert.run(Object.fromEntries(columns.map(([name, value]) => [name, value ?? null])));
    this.#untrimmed += 1;
    if (this.#untrimmed >= TRIMMED_EVERY) this.#trim(event.atMs);
  }

  list(query: AuditQuery): readonly AuditEvent[] {
    const conditions: string[] = [];
    const values: SQLInputValue[] = [];
    const where = (condition: string, value: SQLInputValue | undefined): void => {
      if (value === undefined) return;
      conditions.push(condition);
      values.push(value);
    };
    where("tenant = ?", query.tenant);
    where("outcome = ?", query.outcome);
    where("instr(path, ?) = 1", query.pathPrefix);
    const filter = conditions.length === 0 ? "" : `WHERE ${conditions.join(" AND ")}`;
    const order = query.oldestFirst ? "ASC" : "DESC";
    return this.#database
      .prepare(`SELECT ${COLUMNS} FROM event ${filter} ORDER BY id ${order} LIMIT ? OFFSET ?`)
      .all(...values, query.limit, query.offset)
      .map(parse);
  }

  close(): void {
    this.#database.close();
  }

  #trim(nowMs: number): void {
    const { maxEntries, maxStrangers, maxAge } = this.#options;
    this.#untrimmed = 0;
    this.#statements.forgetOld.run(nowMs - maxAge);
    this.#statements.forgetKnown.run(maxEntries);
    this.#statements.forgetStrangers.run(maxStrangers);
  }
}

function prepare(database: DatabaseSync) {
  return {
    insert: database.prepare(
      `INSERT INTO event (at_ms, request_id, address, method, path, route, status, outcome, tenant, principal, scopes,
         sandbox, principal_type, actor)
       VALUES (:atMs, :requestId, :address, :method, :path, :route, :status, :outcome, :tenant, :principal, :scopes,
         :sandbox, :principalType, :actor)`,
    ),
    forgetOld: database.prepare("DELETE FROM event WHERE at_ms < ?"),
    forgetKnown: database.prepare(
      `DELETE FROM event WHERE tenant IS NOT NULL AND id <=
         (SELECT id FROM event WHERE tenant IS NOT NULL ORDER BY id DESC LIMIT 1 OFFSET ?)`,
    ),
    forgetStrangers: database.prepare(
      `DELETE FROM event WHERE tenant IS NULL AND id <=
         (SELECT id FROM event WHERE tenant IS NULL ORDER BY id DESC LIMIT 1 OFFSET ?)`,
    ),
  };
}

function parse(row: Record<string, SQLOutputValue>): AuditEvent {
  const { scopes, ...known } = Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null));
  return { ...known, scopes: String(scopes).split(" ").filter(Boolean) } as unknown as AuditEvent;
}
