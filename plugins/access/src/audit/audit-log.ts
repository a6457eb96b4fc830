import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { FairRows, openDatabase, type Inferred, Table } from "@coppice/core";
import { z } from "zod";
import type { AccessConfig } from "../access-config.js";

export type Outcome = AuditEvent["outcome"];

/** One entry, without secrets. */
export type AuditEvent = Inferred<typeof auditEvent>;

const auditEvent = z.object({
  /** Assigned in the order of writing. */
  id: z.number().default(0),
  atMs: z.number(),
  requestId: z.string(),
  address: z.string(),
  method: z.string(),
  /** Without the query; cut when it is long. */
  path: z.string(),
  /** The pattern of the route; `none` when it was refused before routing. */
  route: z.string(),
  status: z.number(),
  outcome: z.enum(["allowed", "denied", "error"]),
  /** Undefined for unauthenticated clients. */
  tenant: z.string().optional(),
  principal: z.string().optional(),
  scopes: z.string().transform((scopes) => scopes.split(" ").filter(Boolean)),
  sandbox: z.string().optional(),
  /** Kind of the principal; undefined where its credential does not say. */
  principalType: z.string().optional(),
  /** Subject that acted for the principal. */
  actor: z.string().optional(),
});

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
  "CREATE INDEX event_by_kind ON event (tenant, outcome || ' ' || method || ' ' || route, id);",
];

/** Entries of a kind displace each other: repeating one action hides no other. As the index has it. */
const KIND = "outcome || ' ' || method || ' ' || route";

function kindOf({ outcome, method, route }: Omit<AuditEvent, "id">): string {
  return `${outcome} ${method} ${route}`;
}

/** Deleting row by row would double the cost of writing. */
const TRIMMED_EVERY = 64;

/** The audit of an installation, in an SQLite file. Committed writes survive the end of this process. */
export class AuditLog {
  readonly #options: AuditLogOptions;
  readonly #database: DatabaseSync;
  readonly #events: Table<typeof auditEvent>;
  readonly #known: FairRows;
  #untrimmed = TRIMMED_EVERY;

  /** @throws Error that names the file when it cannot be used. */
  constructor(options: AuditLogOptions) {
    this.#options = options;
    this.#database = openDatabase({ path: join(options.dataDir, "audit.sqlite"), migrations: MIGRATIONS });
    this.#events = new Table(this.#database, { name: "event", schema: auditEvent });
    const columns = { table: "event", owner: "tenant", kind: KIND, sequence: "id" };
    this.#known = new FairRows(this.#database, { ...columns, most: options.maxEntries });
  }

  write(event: Omit<AuditEvent, "id">): void {
    this.#events.insert({ ...event, scopes: event.scopes.join(" ") });
    if (event.tenant !== undefined) this.#known.added(event.tenant, kindOf(event));
    this.#untrimmed += 1;
    if (this.#untrimmed >= TRIMMED_EVERY) this.#trim(event.atMs);
  }

  list({ tenant, outcome, pathPrefix, limit, offset, oldestFirst }: AuditQuery): readonly AuditEvent[] {
    const where = {
      ...(tenant !== undefined && { tenant }),
      ...(outcome !== undefined && { outcome }),
      ...(pathPrefix !== undefined && { path: { starts: pathPrefix } }),
    };
    return this.#events.all(where, { by: oldestFirst ? "id" : "id DESC", limit, offset });
  }

  close(): void {
    this.#database.close();
  }

  #trim(nowMs: number): void {
    const { maxStrangers, maxAge } = this.#options;
    this.#untrimmed = 0;
    const old = `DELETE FROM event WHERE at_ms < ? RETURNING tenant, ${KIND} AS kind`;
    for (const { tenant, kind } of this.#events.query(old, nowMs - maxAge))
      if (typeof tenant === "string") this.#known.removed(tenant, String(kind));
    this.#events.run(
      `DELETE FROM event WHERE tenant IS NULL AND id <=
         (SELECT id FROM event WHERE tenant IS NULL ORDER BY id DESC LIMIT 1 OFFSET ?)`,
      maxStrangers,
    );
  }
}
