import { uuidOf } from "@coppice/core";
import type { DatabaseSync, SQLInputValue, SQLOutputValue } from "node:sqlite";
import type { EventBody } from "./event-body.js";
import type { EventsConfig } from "../events-config.js";
import type { Page } from "./parse-page.js";

/** Outcome of a delivery; `dropped` when too many were waiting already. */
export type DeliveryState = "pending" | "delivered" | "failed" | "dropped";

/** Delivery of one event to one webhook. Times are milliseconds since the Unix epoch. */
export interface Delivery {
  readonly id: string;
  readonly webhook: string;
  readonly event: string;
  readonly type: string;
  readonly sandbox: string;
  readonly state: DeliveryState;
  readonly attempts: number;
  /** Time of the next attempt of a pending one. */
  readonly nextAtMs: number | undefined;
  readonly createdAtMs: number;
  readonly endedAtMs: number | undefined;
  /** Of the last answer. */
  readonly status: number | undefined;
  /** Why the last attempt failed. */
  readonly error: string | undefined;
}

/** The first pending delivery of a webhook, with all that sending it needs. */
export interface DueDelivery {
  readonly id: string;
  readonly webhook: string;
  readonly attempts: number;
  readonly nextAtMs: number;
  /** Body of the request, byte for byte the same in every attempt. */
  readonly body: string;
  readonly url: string;
  readonly secret: string;
}

type AttemptResult = Omit<Delivery, "id" | "webhook" | "event" | "type" | "sandbox" | "createdAtMs">;

interface DeliveryQuery extends Page {
  readonly tenant: string;
  readonly webhook?: string | undefined;
}

// Named as the fields of a delivery.
const COLUMNS = `delivery.id, webhook, event, type, sandbox, state, attempts, next_at_ms AS nextAtMs,
  delivery.created_at_ms AS createdAtMs, ended_at_ms AS endedAtMs, status, error`;

export class DeliveryStore {
  readonly #database: DatabaseSync;
  readonly #settings: EventsConfig["webhooks"];
  readonly #statements: ReturnType<typeof prepare>;

  constructor(database: DatabaseSync, settings: EventsConfig["webhooks"]) {
    this.#database = database;
    this.#settings = settings;
    this.#statements = prepare(database);
  }

  /** Queues an event for a webhook. @returns false when too many wait. */
  add(webhook: string, event: EventBody, nowMs: number): boolean {
    const waiting = Number(this.#statements.waiting.get(webhook)?.["count"]);
    const isDropped = waiting >= this.#settings.maxPending;
    const ended = isDropped ? nowMs : null;
    const state: DeliveryState = isDropped ? "dropped" : "pending";
    const next = isDropped ? null : nowMs;
    const { id, type, sandboxId } = event;
    const body = JSON.stringify(event);
    // Of an event that two servers tell, as a lost one may when it is back, both deliveries have the same id.
    const delivery = uuidOf(`delivery of ${id} to ${webhook}`);
    this.#statements.add.run(delivery, webhook, id, type, sandboxId, body, state, next, nowMs, ended);
    return !isDropped;
  }

  /** The oldest pending delivery of an enabled webhook, due or not. */
  next(webhook: string): DueDelivery | undefined {
    const row = this.#statements.next.get(webhook);
    return row as DueDelivery | undefined;
  }

  waiting(): readonly string[] {
    return this.#statements.webhooks.all().map(({ webhook }) => String(webhook));
  }

  count(): number {
    return Number(this.#statements.count.get()?.["count"]);
  }

  /** Records the result of an attempt. A delivery that was removed meanwhile stays removed. */
  attempted(id: string, webhook: string, result: AttemptResult): void {
    const { state, attempts, nextAtMs, endedAtMs, status, error } = result;
    const values = [nextAtMs, endedAtMs, status, error].map((value) => value ?? null);
    this.#statements.attempted.run(state, attempts, ...values, id);
    if (endedAtMs === undefined) return;
    this.#statements.forget.run({ webhook, kept: this.#settings.maxDeliveries });
  }

  /** Queues a finished delivery again. @returns false when there is no finished one. */
  repeat(webhook: string, id: string, nowMs: number): boolean {
    return this.#statements.repeat.run(nowMs, webhook, id).changes > 0;
  }

  /** True for a finished or pending delivery of a tenant's webhooks. */
  has(tenant: string, id: string): boolean {
    return this.#statements.has.get(tenant, id) !== undefined;
  }

  list(query: DeliveryQuery): readonly Delivery[] {
    const { tenant, webhook, limit, offset, oldestFirst } = query;
    const conditions = ["webhook.tenant = ?"];
    const values: SQLInputValue[] = [tenant];
    if (webhook !== undefined) {
      conditions.push("delivery.webhook = ?");
      values.push(webhook);
    }
    return this.#database
      .prepare(
        `SELECT ${COLUMNS} FROM delivery JOIN webhook ON webhook.id = delivery.webhook
         WHERE ${conditions.join(" AND ")}
         ORDER BY delivery.sequence ${oldestFirst ? "ASC" : "DESC"} LIMIT ? OFFSET ?`,
      )
      .all(...values, limit, offset)
      .map(parse);
  }
}

function prepare(database: DatabaseSync) {
  return {
    add: database.prepare(
      `INSERT INTO delivery (id, webhook, event, type, sandbox, body, state, next_at_ms, created_at_ms, ended_at_ms)
       VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    ),
    waiting: database.prepare(
      "SELECT count(*) AS count FROM delivery WHERE state = 'pending' AND webhook = ?",
    ),
    next: database.prepare(
      `SELECT delivery.id, webhook, attempts, next_at_ms AS nextAtMs, body, url, secret
       FROM delivery JOIN webhook ON webhook.id = delivery.webhook
       WHERE state = 'pending' AND webhook = ? AND enabled = 1 ORDER BY sequence LIMIT 1`,
    ),
    webhooks: database.prepare(
      `SELECT DISTINCT webhook FROM delivery JOIN webhook ON webhook.id = delivery.webhook
       WHERE state = 'pending' AND enabled = 1`,
    ),
    count: database.prepare("SELECT count(*) AS count FROM delivery WHERE state = 'pending'"),
    attempted: database.prepare(
      `UPDATE delivery SET state = ?, attempts = ?, next_at_ms = ?, ended_at_ms = ?, status = ?, error = ?
       WHERE id = ?`,
    ),
    forget: database.prepare(
      `DELETE FROM delivery WHERE webhook = :webhook AND state <> 'pending' AND sequence <=
         (SELECT sequence FROM delivery WHERE webhook = :webhook AND state <> 'pending'
          ORDER BY sequence DESC LIMIT 1 OFFSET :kept)`,
    ),
    has: database.prepare(
      `SELECT 1 FROM delivery JOIN webhook ON webhook.id = delivery.webhook
       WHERE webhook.tenant = ? AND delivery.id = ?`,
    ),
    repeat: database.prepare(
      `UPDATE delivery SET state = 'pending', attempts = 0, next_at_ms = ?, ended_at_ms = NULL
       WHERE webhook = ? AND id = ? AND state <> 'pending'`,
    ),
  };
}

function parse(row: Record<string, SQLOutputValue>): Delivery {
  return Object.fromEntries(Object.entries(row).filter(([, value]) => value !== null)) as unknown as Delivery;
}
