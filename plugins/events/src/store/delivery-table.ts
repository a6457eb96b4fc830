import type { DatabaseSync } from "node:sqlite";
import { type Inferred, Table, uuidOf } from "@coppice/core";
import { z } from "zod";
import type { EventBody } from "./event-log.js";
import type { EventsConfig } from "../events-config.js";
import type { Page } from "./list-of-servers.js";

/** A receiver of a tenant's events. */
export type Webhook = Inferred<typeof webhook>;

export const webhook = z.object({
  id: z.string(),
  tenant: z.string(),
  name: z.string(),
  url: z.string(),
  /** Names of the event types that it receives. */
  types: z.array(z.string()),
  /** False: nothing is delivered to it, and no new deliveries are queued. */
  isEnabled: z.boolean(),
  secret: z.string(),
  /** JavaScript can make a date of it: the store of a fleet may have any number. */
  createdAtMs: z.number().min(-8.64e15).max(8.64e15),
});

/** A webhook in this server's file. */
type KnownWebhook = Inferred<typeof knownWebhook>;

const knownWebhook = webhook.extend({
  /** True for one that all servers have. */
  isShared: z.boolean(),
});

/** The webhooks of an installation; each is found by its tenant and id. */
export class WebhookTable extends Table<typeof knownWebhook> {
  constructor(database: DatabaseSync) {
    const columns = { isEnabled: "enabled", isShared: "shared" };
    super(database, { name: "webhook", schema: knownWebhook, columns });
  }

  /** Adds it, or replaces everything but the id, the tenant and the time of creation. */
  override put(webhook: KnownWebhook): void {
    const { id, tenant, createdAtMs: _kept, ...changes } = webhook;
    if (this.update({ id, tenant }, changes) === 0) this.insert(webhook, "INSERT OR IGNORE");
  }

  /** Oldest first. */
  list(tenant: string): readonly KnownWebhook[] {
    return this.all({ tenant }, { by: "created_at_ms, id" });
  }
}

/** Delivery of one event to one webhook. Times are milliseconds since the Unix epoch. */
export type Delivery = Inferred<typeof delivery>;

const delivery = z.object({
  id: z.string(),
  webhook: z.string(),
  event: z.string(),
  type: z.string(),
  sandbox: z.string(),
  /** Body of the request, byte for byte the same in every attempt. */
  body: z.string(),
  /** `dropped` when too many were waiting already. */
  state: z.enum(["pending", "delivered", "failed", "dropped"]),
  attempts: z.number().default(0),
  /** Time of the next attempt of a pending one. */
  nextAtMs: z.number().optional(),
  createdAtMs: z.number(),
  endedAtMs: z.number().optional(),
  /** Of the last answer. */
  status: z.number().optional(),
  /** Why the last attempt failed. */
  error: z.string().optional(),
});

/** The first pending delivery of a webhook, with all that sending it needs. */
export interface DueDelivery
  extends Pick<Delivery, "id" | "webhook" | "attempts" | "body">, Pick<Webhook, "tenant" | "url" | "secret"> {
  readonly nextAtMs: number;
}

type AttemptResult = Pick<Delivery, "state" | "attempts" | "nextAtMs" | "endedAtMs" | "status" | "error">;

interface DeliveryQuery extends Page {
  readonly tenant: string;
  readonly webhook?: string | undefined;
}

export class DeliveryTable extends Table<typeof delivery> {
  readonly #settings: EventsConfig["webhooks"];

  constructor(database: DatabaseSync, settings: EventsConfig["webhooks"]) {
    super(database, { name: "delivery", schema: delivery });
    this.#settings = settings;
  }

  /** Queues an event for a webhook. @returns false when too many wait. */
  add(webhook: string, event: EventBody, nowMs: number): boolean {
    const isDropped = this.count({ webhook, state: "pending" }) >= this.#settings.maxPending;
    this.insert({
      // Of an event that two servers tell, as a lost one may when it is back, both deliveries have the same id.
      id: uuidOf(`delivery of ${event.id} to ${webhook}`),
      webhook,
      event: event.id,
      type: event.type,
      sandbox: event.sandboxId,
      body: JSON.stringify(event),
      createdAtMs: nowMs,
      ...(isDropped ? { state: "dropped", endedAtMs: nowMs } : { state: "pending", nextAtMs: nowMs }),
    });
    return !isDropped;
  }

  /** The oldest pending delivery of an enabled webhook, due or not. */
  next(webhook: string): DueDelivery | undefined {
    const [row] = this.query(
      `SELECT delivery.id, webhook, tenant, attempts, next_at_ms AS nextAtMs, body, url, secret
       FROM delivery JOIN webhook ON webhook.id = delivery.webhook
       WHERE state = 'pending' AND webhook = ? AND enabled = 1 ORDER BY sequence LIMIT 1`,
      webhook,
    );
    return row as unknown as DueDelivery | undefined;
  }

  /** Enabled webhooks with pending deliveries. */
  waiting(): readonly string[] {
    const rows = this.query(
      `SELECT DISTINCT webhook FROM delivery JOIN webhook ON webhook.id = delivery.webhook
       WHERE state = 'pending' AND enabled = 1`,
    );
    return rows.map(({ webhook }) => String(webhook));
  }

  /** Records the result of an attempt. A delivery that was removed meanwhile stays removed. */
  attempted(id: string, webhook: string, result: AttemptResult): void {
    this.update({ id }, result);
    if (result.endedAtMs === undefined) return;
    this.run(
      `DELETE FROM delivery WHERE webhook = ?1 AND state <> 'pending' AND sequence <=
         (SELECT sequence FROM delivery WHERE webhook = ?1 AND state <> 'pending'
          ORDER BY sequence DESC LIMIT 1 OFFSET ?2)`,
      webhook,
      this.#settings.maxDeliveries,
    );
  }

  /** Queues a finished delivery again. @returns false when there is no finished one. */
  repeat(webhook: string, id: string, nowMs: number): boolean {
    const again = { state: "pending", attempts: 0, nextAtMs: nowMs, endedAtMs: undefined } as const;
    return this.update({ webhook, id, state: { not: "pending" } }, again) > 0;
  }

  /** A page of the deliveries to a tenant's webhooks. */
  page({ tenant, webhook, limit, offset, oldestFirst }: DeliveryQuery): readonly Delivery[] {
    return this.select(
      `JOIN webhook ON webhook.id = delivery.webhook
       WHERE webhook.tenant = ? ${webhook === undefined ? "" : "AND delivery.webhook = ?"}
       ORDER BY delivery.sequence ${oldestFirst ? "ASC" : "DESC"} LIMIT ? OFFSET ?`,
      ...[tenant, webhook ?? [], limit, offset].flat(),
    );
  }

  /** True for a finished or pending delivery of a tenant's webhooks. */
  isOf(tenant: string, id: string): boolean {
    const joined =
      "JOIN webhook ON webhook.id = delivery.webhook WHERE webhook.tenant = ? AND delivery.id = ?";
    return this.select(joined, tenant, id).length > 0;
  }
}
