/** Each migrates a database from that version to the next. */
export const MIGRATIONS: readonly string[] = [
  `CREATE TABLE template (
     id TEXT PRIMARY KEY,
     owner TEXT NOT NULL,
     namespace TEXT NOT NULL,
     alias TEXT NOT NULL,
     is_public INTEGER NOT NULL DEFAULT 0,
     created_at_ms REAL NOT NULL,
     updated_at_ms REAL NOT NULL,
     spawn_count INTEGER NOT NULL DEFAULT 0,
     last_spawned_at_ms REAL,
     UNIQUE (owner, alias)
   ) STRICT;
   CREATE INDEX template_by_name ON template (namespace, alias);
   CREATE TABLE build (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     id TEXT NOT NULL UNIQUE,
     template TEXT NOT NULL REFERENCES template (id) ON DELETE CASCADE,
     backend TEXT NOT NULL,
     state TEXT NOT NULL,
     limits TEXT NOT NULL,
     image TEXT,
     result TEXT,
     reason TEXT,
     created_at_ms REAL NOT NULL,
     updated_at_ms REAL NOT NULL,
     finished_at_ms REAL
   ) STRICT;
   CREATE INDEX build_by_template ON build (template, sequence);
   CREATE INDEX build_by_state ON build (state);
   CREATE INDEX build_by_image ON build (image);
   CREATE TABLE tag (
     sequence INTEGER PRIMARY KEY AUTOINCREMENT,
     template TEXT NOT NULL REFERENCES template (id) ON DELETE CASCADE,
     name TEXT NOT NULL,
     build TEXT NOT NULL REFERENCES build (id) ON DELETE CASCADE,
     assigned_at_ms REAL NOT NULL,
     UNIQUE (template, name, build)
   ) STRICT;
   CREATE INDEX tag_by_name ON tag (template, name, sequence);
   CREATE INDEX tag_by_build ON tag (build);
   CREATE TABLE log_entry (
     build TEXT NOT NULL REFERENCES build (id) ON DELETE CASCADE,
     number INTEGER NOT NULL,
     at_ms REAL NOT NULL,
     level INTEGER NOT NULL,
     message TEXT NOT NULL,
     step TEXT,
     PRIMARY KEY (build, number)
   ) STRICT, WITHOUT ROWID;
   CREATE TABLE layer (
     tenant TEXT NOT NULL,
     backend TEXT NOT NULL,
     key TEXT NOT NULL,
     image TEXT NOT NULL,
     content TEXT NOT NULL,
     used_at_ms REAL NOT NULL,
     PRIMARY KEY (tenant, backend, key)
   ) STRICT, WITHOUT ROWID;
   CREATE INDEX layer_by_image ON layer (image);
   CREATE TABLE image (
     id TEXT PRIMARY KEY,
     backend TEXT NOT NULL,
     tenant TEXT NOT NULL,
     bytes INTEGER
   ) STRICT;
   CREATE INDEX image_by_tenant ON image (tenant);
   CREATE TABLE upload (
     tenant TEXT NOT NULL,
     hash TEXT NOT NULL,
     bytes INTEGER NOT NULL,
     used_at_ms REAL NOT NULL,
     PRIMARY KEY (tenant, hash)
   ) STRICT, WITHOUT ROWID;
   CREATE TABLE secret (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;`,
  // Packages of an image, each in a line.
  `ALTER TABLE image ADD COLUMN contents TEXT;`,
  // The image of a build in the registry of a fleet, and builds of other servers.
  `ALTER TABLE build ADD COLUMN digest TEXT;
   CREATE TABLE copy (
     id TEXT PRIMARY KEY,
     image TEXT NOT NULL,
     result TEXT NOT NULL,
     used_at_ms REAL NOT NULL
   ) STRICT;
   CREATE INDEX copy_by_image ON copy (image);`,
];
