/** Each migrates a database from that version to the next. */
export const MIGRATIONS: readonly string[] = [
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
