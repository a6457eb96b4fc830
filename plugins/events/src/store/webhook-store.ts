import type { DatabaseSync, SQLOutputValue } from "node:sqlite";

/** A receiver of a tenant's events. */
export interface Webhook {
  readonly id: string;
  readonly tenant: string;
  readonly name: string;
  readonly url: string;
  /** Names of the event types that it receives. */
  readonly types: readonly string[];
  /** False: nothing is delivered to it, and no new deliveries are queued. */
  readonly isEnabled: boolean;
  readonly secret: string;
  readonly createdAtMs: number;
}

/** The webhooks of an installation; each is found by its tenant and id. */
export class WebhookStore {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync) {
    this.#statements = prepare(database);
  }

  /** Adds it, or replaces everything but the id, the tenant and the time of creation. */
  put(webhook: Webhook, { isShared }: { readonly isShared: boolean }): void {
    const { id, tenant, name, url, types, isEnabled, secret, createdAtMs } = webhook;
    const values = [id, tenant, name, url, JSON.stringify(types), Number(isEnabled), secret, createdAtMs];
    this.#statements.put.run(...values, Number(isShared));
  }

  /** Removes it with its deliveries, if there is one. */
  remove(id: string): void {
    this.#statements.remove.run(id);
  }

  /** Removes those that other servers had too, but for these. */
  keepShared(ids: readonly string[]): void {
    this.#statements.keepShared.run(JSON.stringify(ids));
  }

  /** Those that this server alone has, of all tenants. */
  unshared(): readonly Webhook[] {
    return this.#statements.unshared.all().map(parse);
  }

  /** Oldest first. */
  list(tenant: string): readonly Webhook[] {
    return this.#statements.list.all(tenant).map(parse);
  }
}

function prepare(database: DatabaseSync) {
  return {
    put: database.prepare(
      `INSERT INTO webhook (id, tenant, name, url, types, enabled, secret, created_at_ms, shared)
       VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
       ON CONFLICT (id) DO UPDATE SET name = ?3, url = ?4, types = ?5, enabled = ?6, secret = ?7, shared = ?9
       WHERE tenant = ?2`,
    ),
    remove: database.prepare("DELETE FROM webhook WHERE id = ?"),
    keepShared: database.prepare(
      "DELETE FROM webhook WHERE shared = 1 AND id NOT IN (SELECT value FROM json_each(?))",
    ),
    unshared: database.prepare("SELECT * FROM webhook WHERE shared = 0"),
    list: database.prepare("SELECT * FROM webhook WHERE tenant = ? ORDER BY created_at_ms, id"),
  };
}

function parse(row: Record<string, SQLOutputValue>): Webhook {
  return {
    id: String(row["id"]),
    tenant: String(row["tenant"]),
    name: String(row["name"]),
    url: String(row["url"]),
    types: JSON.parse(String(row["types"])) as readonly string[],
    isEnabled: row["enabled"] === 1,
    secret: String(row["secret"]),
    createdAtMs: Number(row["created_at_ms"]),
  };
}
