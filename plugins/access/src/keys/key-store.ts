import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, type Inferred, SandboxError, Table } from "@coppice/core";
import { z } from "zod";
import { digestOf, newApiKey } from "./api-key.js";
import { isKeyScope } from "./key-scopes.js";
import { REASONS } from "../reasons.js";

/** Record of a key. Times are milliseconds since the Unix epoch. */
export type StoredKey = Inferred<typeof storedKey>;

const storedKey = z.object({
  id: z.string(),
  /** Of the key itself, which is not stored. */
  digest: z.string(),
  tenant: z.string(),
  /** Unique among a tenant's keys in use. */
  name: z.string(),
  scopes: z.string().transform((scopes) => scopes.split(" ").filter(isKeyScope)),
  /** The first digits, to tell keys apart. */
  hint: z.string(),
  createdAtMs: z.number(),
  expiresAtMs: z.number().optional(),
  revokedAtMs: z.number().optional(),
});

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

const HINT_LENGTH = 8;
const SQLITE_CONSTRAINT_UNIQUE = 2067;
const IN_USE = "revoked_at_ms IS NULL AND (expires_at_ms IS NULL OR expires_at_ms > ?)";

/** The keys of an installation, as digests in an SQLite file. A change takes effect with the next request. */
export class KeyStore {
  readonly #database: DatabaseSync;
  readonly #keys: Table<typeof storedKey>;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string) {
    this.#database = openDatabase({ path: join(dataDir, "keys.sqlite"), migrations: MIGRATIONS });
    this.#keys = new Table(this.#database, { name: "key", schema: storedKey });
  }

  /** Creates a key, which can be shown only now. @throws SandboxError already_exists when a key in use has the name. */
  create(wanted: NewKey, nowMs: number): { readonly key: string; readonly stored: StoredKey } {
    const key = newApiKey();
    const id = `k${randomBytes(5).toString("hex")}`;
    const stored: StoredKey = {
      ...wanted,
      id,
      digest: digestOf(key),
      name: wanted.name ?? id,
      hint: key.slice(0, HINT_LENGTH),
      createdAtMs: nowMs,
    };
    try {
      this.#keys.insert({ ...stored, scopes: stored.scopes.join(" ") });
    } catch (error) {
      if ((error as { errcode?: number }).errcode !== SQLITE_CONSTRAINT_UNIQUE) throw error;
      const text = `tenant '${stored.tenant}' has a key named '${stored.name}' already: revoke it, or take another name`;
      throw new SandboxError(REASONS.key_exists, text);
    }
    return { key, stored };
  }

  /** The key with this digest, if it is in use: not revoked, not expired. */
  find(digest: string, nowMs: number): StoredKey | undefined {
    return this.#keys.select(`WHERE digest = ? AND ${IN_USE}`, digest, nowMs)[0];
  }

  /** Tenants with a key in use. */
  tenants(nowMs: number): readonly string[] {
    const rows = this.#keys.query(`SELECT DISTINCT tenant FROM key WHERE ${IN_USE}`, nowMs);
    return rows.map(({ tenant }) => String(tenant));
  }

  /** All keys, also revoked and expired ones, newest first. */
  list(): readonly StoredKey[] {
    return this.#keys.all({}, { by: "created_at_ms DESC, id" });
  }

  /** Revokes a key. Returns false when none in use has that id. */
  revoke(id: string, nowMs: number): boolean {
    return this.#keys.update({ id, revokedAtMs: undefined }, { revokedAtMs: nowMs }) > 0;
  }

  close(): void {
    this.#database.close();
  }

  [Symbol.dispose](): void {
    this.close();
  }
}
