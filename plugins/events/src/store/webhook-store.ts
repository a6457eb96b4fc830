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

  add(webhook: Webhook): void {
    const { id, tenant, name, url, types, isEnabled, secret, createdAtMs } = webhook;
    const values = [id, tenant, name, url, JSON.stringify(types), Number(isEnabled), secret, createdAtMs];
    this.#statements.add.run(...values);
  }

  /** Replaces everything but the id, the tenant and the time of creation. */
  update(webhook: Webhook): void {
    const { id, tenant, name, url, types, isEnabled, secret } = webhook;
    this.#statements.update.run(name, url, JSON.stringify(types), Number(isEnabled), secret, id, tenant);
  }

  /** Removes it with its deliveries. @returns false when there is none. */
  remove(tenant: string, id: string): boolean {
    return this.#statements.remove.run(tenant, id).changes > 0;
  }

  find(tenant: string, id: string): Webhook | undefined {
    const row = this.#statements.find.get(tenant, id);
    return row && parse(row);
  }

  /** Oldest first. */
  list(tenant: string): readonly Webhook[] {
    return this.#statements.list.all(tenant).map(parse);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare(
      `INSERT INTO webhook (id, tenant, name, url, types, enabled, secret, created_at_ms)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
    ),
    update: database.prepare(
      "UPDATE webhook SET name = ?, url = ?, types = ?, enabled = ?, secret = ? WHERE id = ? AND tenant = ?",
    ),
    remove: database.prepare("DELETE FROM webhook WHERE tenant = ? AND id = ?"),
    find: database.prepare("SELECT * FROM webhook WHERE tenant = ? AND id = ?"),
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
