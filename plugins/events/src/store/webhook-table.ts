import { type Inferred, Table } from "@coppice/core";
import type { DatabaseSync } from "node:sqlite";
import { z } from "zod";

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
  createdAtMs: z.number(),
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
