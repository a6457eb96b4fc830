import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, type SandboxEvent, transaction } from "@coppice/core";
import { DeliveryTable, WebhookTable } from "./delivery-table.js";
import { EventLog } from "./event-log.js";
import type { EventsConfig } from "../events-config.js";

/** Each migrates a database from that version to the next. */
const MIGRATIONS: readonly string[] = [
  `CREATE TABLE event (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL UNIQUE,
     tenant TEXT NOT NULL,
     sandbox TEXT NOT NULL,
     type TEXT NOT NULL,
     at_ms REAL NOT NULL,
     body TEXT NOT NULL
   ) STRICT;
   CREATE INDEX event_by_tenant ON event (tenant, sequence);
   CREATE INDEX event_by_sandbox ON event (tenant, sandbox, sequence);
   CREATE INDEX event_by_time ON event (at_ms);
   CREATE TABLE webhook (
     id TEXT PRIMARY KEY,
     tenant TEXT NOT NULL,
     name TEXT NOT NULL,
     url TEXT NOT NULL,
     types TEXT NOT NULL,
     enabled INTEGER NOT NULL,
     secret TEXT NOT NULL,
     created_at_ms REAL NOT NULL
   ) STRICT;
   CREATE INDEX webhook_by_tenant ON webhook (tenant, created_at_ms);
   CREATE TABLE delivery (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL UNIQUE,
     webhook TEXT NOT NULL REFERENCES webhook (id) ON DELETE CASCADE,
     event TEXT NOT NULL,
     type TEXT NOT NULL,
     sandbox TEXT NOT NULL,
     body TEXT NOT NULL,
     state TEXT NOT NULL,
     attempts INTEGER NOT NULL DEFAULT 0,
     next_at_ms REAL,
     created_at_ms REAL NOT NULL,
     ended_at_ms REAL,
     status INTEGER,
     error TEXT
   ) STRICT;
   CREATE INDEX delivery_by_webhook ON delivery (webhook, sequence);
   CREATE INDEX delivery_by_state ON delivery (state, webhook, sequence);`,
  `ALTER TABLE webhook ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;`,
];

/** Events, webhooks and deliveries in one SQLite file. Committed writes survive the end of this process. */
export class EventsStore implements Disposable {
  readonly #database: DatabaseSync;
  readonly events: EventLog;
  readonly webhooks: WebhookTable;
  readonly deliveries: DeliveryTable;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string, config: EventsConfig) {
    this.#database = openDatabase({ path: join(dataDir, "events.sqlite"), migrations: MIGRATIONS });
    this.events = new EventLog(this.#database, config);
    this.webhooks = new WebhookTable(this.#database);
    this.deliveries = new DeliveryTable(this.#database, config.webhooks);
  }

  /**
   * Stores new events and their deliveries, all or nothing. Known events are left out. @returns the type names of the
   * new ones, the webhooks that get them, and how many deliveries are dropped.
   */
  record(events: readonly SandboxEvent[], nowMs: number) {
    const types: string[] = [];
    const woken = new Set<string>();
    let dropped = 0;
    transaction(this.#database, () => {
      for (const event of events) {
        const body = this.events.add(event);
        if (body === undefined) continue;
        types.push(body.type);
        for (const { id, isEnabled, types: wanted } of this.webhooks.list(event.owner)) {
          if (!isEnabled || !wanted.includes(body.type)) continue;
          if (this.deliveries.add(id, body, nowMs)) woken.add(id);
          else dropped += 1;
        }
      }
      this.events.trim(nowMs);
    });
    return { types, webhooks: woken, dropped };
  }

  close(): void {
    this.#database.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
