import type { DatabaseSync } from "node:sqlite";

/** An archive of files that a tenant has uploaded for COPY steps. */
export interface UploadRecord {
  readonly tenant: string;
  /** 64 hexadecimal digits that its client chose. */
  readonly hash: string;
  readonly bytes: number;
  /** Milliseconds since the Unix epoch. */
  readonly usedAtMs: number;
}

/** The uploaded archives of all tenants. */
export class UploadTable {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  /** In place of an earlier one of the same hash. */
  add({ tenant, hash, bytes, usedAtMs }: UploadRecord): void {
    this.#statements.add.run(tenant, hash, bytes, usedAtMs);
  }

  /** Notes a use. @returns false when there is none. */
  use(tenant: string, hash: string, nowMs: number): boolean {
    return this.#statements.use.run(nowMs, tenant, hash).changes > 0;
  }

  /** Bytes of all of a tenant. */
  usage(tenant: string): number {
    return Number(this.#statements.usage.get(tenant)?.["bytes"]);
  }

  remove(tenant: string, hash: string): void {
    this.#statements.remove.run(tenant, hash);
  }

  /** Those of a tenant, least recently used first. */
  list(tenant: string): readonly UploadRecord[] {
    return this.#statements.list.all(tenant).map(parse);
  }

  /** Those that have not been used since a time. */
  unusedSince(usedAtMs: number): readonly UploadRecord[] {
    return this.#statements.unusedSince.all(usedAtMs).map(parse);
  }

  all(): readonly UploadRecord[] {
    return this.#statements.all.all().map(parse);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare(
      "INSERT OR REPLACE INTO upload (tenant, hash, bytes, used_at_ms) VALUES (?, ?, ?, ?)",
    ),
    use: database.prepare("UPDATE upload SET used_at_ms = ? WHERE tenant = ? AND hash = ?"),
    usage: database.prepare("SELECT coalesce(sum(bytes), 0) AS bytes FROM upload WHERE tenant = ?"),
    remove: database.prepare("DELETE FROM upload WHERE tenant = ? AND hash = ?"),
    list: database.prepare("SELECT * FROM upload WHERE tenant = ? ORDER BY used_at_ms"),
    unusedSince: database.prepare("SELECT * FROM upload WHERE used_at_ms < ?"),
    all: database.prepare("SELECT * FROM upload"),
  };
}

function parse(row: Readonly<Record<string, unknown>>): UploadRecord {
  return {
    tenant: String(row["tenant"]),
    hash: String(row["hash"]),
    bytes: Number(row["bytes"]),
    usedAtMs: Number(row["used_at_ms"]),
  };
}
