import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DatabaseSync, SQLOutputValue } from "node:sqlite";
import { openDatabase, SandboxError } from "@coppice/core";
import { digestOf, newApiKey } from "./api-key.js";
import { isKeyScope, type KeyScope } from "./key-scopes.js";

/** Record of a key. Times are milliseconds since the Unix epoch. */
export interface StoredKey {
  readonly id: string;
  readonly tenant: string;
  /** Unique among a tenant's keys in use. */
  readonly name: string;
  readonly scopes: readonly KeyScope[];
  /** The first digits, to tell keys apart. */
  readonly hint: string;
  readonly createdAtMs: number;
  readonly expiresAtMs: number | undefined;
  readonly revokedAtMs: number | undefined;
}

export type NewKey = Pick<StoredKey, "tenant" | "scopes" | "expiresAtMs"> & {
  /** Its id when absent. */
  readonly name: string | undefined;
};

const MIGRATIONS: readonly string[] = [
  `CREATE TABLE key (
     id TEXT PRIMARY KEY,
     digest TEXT NOT NULL UNIQUE,
     tenant TEXT NOT NULL,
     name TEXT NOT NULL,
     scopes TEXT NOT NULL,
     hint TEXT NOT NULL,
     created_at_ms REAL NOT NULL,
     expires_at_ms REAL,
     revoked_at_ms REAL
   ) STRICT;
   CREATE UNIQUE INDEX key_in_use ON key (tenant, name) WHERE revoked_at_ms IS NULL;`,
];

// Named as the fields of a key.
const COLUMNS = `id, tenant, name, scopes, hint,
  created_at_ms AS createdAtMs, expires_at_ms AS expiresAtMs, revoked_at_ms AS revokedAtMs`;
const HINT_LENGTH = 8;
const SQLITE_CONSTRAINT_UNIQUE = 2067;

/** The keys of an installation, as digests in an SQLite file. A change takes effect with the next request. */
export class KeyStore {
  readonly #database: DatabaseSync;
  readonly #statements: ReturnType<typeof prepare>;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string) {
    this.#database = openDatabase({ path: join(dataDir, "keys.sqlite"), migrations: MIGRATIONS });
    this.#statements = prepare(this.#database);
  }

  /** Creates a key, which can be shown only now. @throws SandboxError already_exists when a key in use has the name. */
  create(wanted: NewKey, nowMs: number): { readonly key: string; readonly stored: StoredKey } {
    const key = newApiKey();
    const id = `k${randomBytes(5).toString("hex")}`;
    const stored: StoredKey = {
      ...wanted,
      id,
      name: wanted.name ?? id,
      hint: key.slice(0, HINT_LENGTH),
      createdAtMs: nowMs,
      revokedAtMs: undefined,
    };
    const { tenant, name, scopes, hint, expiresAtMs } = stored;
    const values = [id, digestOf(key), tenant, name, scopes.join(" "), hint, nowMs, expiresAtMs ?? null];
    try {
      this.#statements.insert.run(...values);
    } catch (error) {
      if ((error as { errcode?: number }).errcode !== SQLITE_CONSTRAINT_UNIQUE) throw error;
      const text = `tenant '${tenant}' has a key named '${name}' already: revoke it, or take another name`;
      throw new SandboxError("key_exists", text);
    }
    return { key, stored };
  }

  /** The key with this digest, if it is in use: not revoked, not expired. */
  find(digest: string, nowMs: number): StoredKey | undefined {
    const row = this.#statements.find.get(digest, nowMs);
    return row && parse(row);
  }

  /** All keys, also revoked and expired ones, newest first. */
  list(): readonly StoredKey[] {
    return this.#statements.list.all().map(parse);
  }

  /** Revokes a key. Returns false when none in use has that id. */
  revoke(id: string, nowMs: number): boolean {
    return this.#statements.revoke.run(nowMs, id).changes > 0;
  }

  close(): void {
    this.#database.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}

function prepare(database: DatabaseSync) {
  return {
    insert: database.prepare(
      `INSERT INTO key (id, digest, tenant, name, scopes, hint, created_at_ms, expires_at_ms)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
    ),
    find: database.prepare(
      `SELECT ${COLUMNS} FROM key
       WHERE digest = ? AND revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > ?)`,
    ),
    list: database.prepare(`SELECT ${COLUMNS} FROM key ORDER BY created_at_ms DESC, id`),
    revoke: database.prepare("UPDATE key SET revoked_at_ms = ? WHERE id = ? AND revoked_at_ms IS NULL"),
  };
}

function parse(row: Record<string, SQLOutputValue>): StoredKey {
  const { scopes, ...known } = Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null));
  return { ...known, scopes: String(scopes).split(" ").filter(isKeyScope) } as unknown as StoredKey;
}
