/** Each migrates a database from that version to the next. */
export const MIGRATIONS: readonly string[] = [
  `CREATE TABLE lease (
     id TEXT PRIMARY KEY,
     ttl_ms INTEGER NOT NULL,
     ends_at_ms REAL NOT NULL
   ) STRICT;
   CREATE TABLE entry (
     key TEXT PRIMARY KEY,
     value TEXT NOT NULL,
     created INTEGER NOT NULL,
     modified INTEGER NOT NULL,
     lease TEXT REFERENCES lease (id)
   ) STRICT, WITHOUT ROWID;
   CREATE INDEX entry_by_lease ON entry (lease);
   CREATE TABLE change (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     revision INTEGER NOT NULL,
     key TEXT NOT NULL,
     value TEXT,
     created INTEGER NOT NULL
   ) STRICT;
   CREATE INDEX change_by_revision ON change (revision);
   CREATE TABLE state (
     revision INTEGER NOT NULL,
     compacted INTEGER NOT NULL
   ) STRICT;
   INSERT INTO state VALUES (1, 0);`,
];
