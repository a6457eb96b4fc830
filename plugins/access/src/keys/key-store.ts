import { randomBytes } from "node:crypto";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import {
  type Clock,
  DEFAULT_TENANT,
  digestOf,
  type Inferred,
  keptFile,
  type Logger,
  messageOf,
  openDatabase,
  type Principal,
  SandboxError,
  SCOPES,
  Table,
} from "@coppice/core";
import { z } from "zod";
import { REASONS } from "../reasons.js";

/** Fixed by E2B's older Python SDKs, which send no key of another form. */
export const API_KEY_FORM = /^e2b_[0-9a-f]+$/;

/** A new key: `e2b_` and 40 hex digits, 160 random bits. */
export function newApiKey(): string {
  return `e2b_${randomBytes(20).toString("hex")}`;
}

/** What a key may be used for. */
export type Scope = (typeof SCOPES)[number];

/** Scopes of a key; each includes those before it. */
export const KEY_SCOPES = ["read", "exec", "admin"] as const;

export type KeyScope = (typeof KEY_SCOPES)[number];

const GRANTED: Readonly<Record<KeyScope, readonly Scope[]>> = {
  read: ["read"],
  exec: ["read", "write", "exec", "attach"],
  admin: SCOPES,
};

function scopesOfKey(scopes: readonly KeyScope[]): ReadonlySet<Scope> {
  return new Set(scopes.flatMap((scope) => GRANTED[scope]));
}

export function isKeyScope(text: string): text is KeyScope {
  return (KEY_SCOPES as readonly string[]).includes(text);
}

/** A tenant of keys and organizations. A JWT's personal tenant has a colon, so the two never collide. */
export const TENANT_NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/;

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

export type ApiKeys = ReturnType<typeof apiKeysOf>;

/**
 * The keys that are accepted: those of the configuration, which `use` gives, and those of the store.
 * @param store called at each request for all other keys.
 */
export function apiKeysOf(store: () => KeyStore, clock: Clock) {
  let known: ReadonlyMap<string, Principal> = new Map();
  return {
    /** Keys of the default tenant with all scopes, by their names, in place of the last ones. */
    use(keys: ReadonlyMap<string, string>): void {
      known = new Map(
        [...keys].map(([name, key]) => [
          digestOf(key),
          { tenant: DEFAULT_TENANT, name, scopes: new Set(SCOPES) },
        ]),
      );
    },
    /** Tenants that have a key. */
    tenants: (): readonly string[] => [
      ...(known.size > 0 ? [DEFAULT_TENANT] : []),
      ...store().tenants(clock.now()),
    ],
    /** Finds the principal of a key; undefined for an unknown, expired or revoked one. */
    find(key: string): Principal | undefined {
      const digest = digestOf(key);
      const stored = known.has(digest) ? undefined : store().find(digest, clock.now());
      if (stored === undefined) return known.get(digest);
      return { tenant: stored.tenant, name: stored.name, scopes: scopesOfKey(stored.scopes) };
    },
  };
}

const KEY = /^e2b_[0-9a-f]{40,}$/;

/**
 * The key in a file, which is created when missing. Concurrent callers, also in other processes, get the same key.
 * @throws Error that names the file when it belongs to another user, or holds no key.
 */
export async function keptDevelopmentKey(path: string, log: Logger): Promise<string> {
  try {
    const { contents, wasOpen } = await keptFile(path, () => `${newApiKey()}\n`);
    if (wasOpen)
      log.warn({ file: path }, "others could use the development key; remove the file for a new one");
    const key = contents.toString().trim();
    if (KEY.test(key)) return key;
    throw new Error("it holds no key; remove it for a new one");
  } catch (error) {
    throw new Error(`the development key ${path} cannot be used: ${messageOf(error)}`, { cause: error });
  }
}
