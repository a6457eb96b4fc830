import { randomBytes, randomUUID } from "node:crypto";
import { type Clock, SandboxError, type TargetGuard } from "@coppice/core";
import type { EventsConfig } from "../events-config.js";
import type { DeliveryTable, Webhook } from "../store/delivery-table.js";
import type { WebhookRecords } from "./webhook-records.js";
import { REASONS } from "../reasons.js";

export type WebhookRequest = Pick<Webhook, "name" | "url" | "types" | "isEnabled"> & {
  /** Generated when absent. */
  readonly secret: string | undefined;
};

export type WebhookChange = { readonly [K in keyof WebhookRequest]?: WebhookRequest[K] | undefined };

export interface WebhooksOptions {
  readonly settings: EventsConfig["webhooks"];
  /** Called from the start on. */
  readonly records: () => WebhookRecords;
  readonly deliveries: () => DeliveryTable;
  readonly guard: TargetGuard;
  readonly clock: Clock;
  /** Called when a delivery may be due. */
  readonly onDue: (webhook: string) => void;
}

/** The webhooks of all tenants. Another tenant's webhook is answered like an unknown one. */
export class Webhooks {
  readonly #options: WebhooksOptions;

  constructor(options: WebhooksOptions) {
    this.#options = options;
  }

  /** @throws SandboxError invalid_argument (URL), resource_exhausted (`maxWebhooks`). */
  async register(tenant: string, { secret, ...request }: WebhookRequest): Promise<Webhook> {
    const { settings, records, clock } = this.#options;
    this.#checkUrl(request.url);
    const webhook: Webhook = {
      ...request,
      id: randomUUID(),
      tenant,
      secret: secret ?? `whsec_${randomBytes(32).toString("base64")}`,
      createdAtMs: clock.now(),
    };
    await records().change(tenant, webhook.id, (all) => {
      if (all.length < settings.maxWebhooks) return webhook;
      const text = `you have reached the maximum number of webhooks (${settings.maxWebhooks})`;
      throw new SandboxError(REASONS.webhook_limit_reached, text);
    });
    return webhook;
  }

  /** Oldest first. */
  async list(tenant: string): Promise<readonly Webhook[]> {
    return this.#options.records().list(tenant);
  }

  /** @throws SandboxError not_found */
  async get(tenant: string, id: string): Promise<Webhook> {
    return oneOf(await this.list(tenant), id);
  }

  /** Waiting deliveries go to its new URL. @throws SandboxError not_found, invalid_argument (URL). */
  async update(tenant: string, id: string, change: WebhookChange): Promise<Webhook> {
    const { records, onDue } = this.#options;
    let webhook = await this.get(tenant, id);
    if (change.url !== undefined) this.#checkUrl(change.url);
    const changed = Object.fromEntries(Object.entries(change).filter(([, value]) => value !== undefined));
    await records().change(tenant, id, (all) => (webhook = { ...oneOf(all, id), ...changed }));
    onDue(id);
    return webhook;
  }

  /** Removes it with its pending deliveries. @throws SandboxError not_found */
  async remove(tenant: string, id: string): Promise<Webhook> {
    const webhook = await this.get(tenant, id);
    await this.#options.records().change(tenant, id, (all) => void oneOf(all, id));
    return webhook;
  }

  /** Sends a finished delivery again, whatever its outcome. @throws SandboxError not_found */
  async repeat(tenant: string, id: string, delivery: string): Promise<void> {
    const { deliveries, clock, onDue } = this.#options;
    await this.get(tenant, id);
    if (!deliveries().repeat(id, delivery, clock.now())) {
      const text = `webhook '${id}' has no delivery '${delivery}' that is done`;
      throw new SandboxError(REASONS.delivery_not_found, text);
    }
    onDue(id);
  }

  #checkUrl(url: string): void {
    if (this.#options.guard.permitsHost(new URL(url).hostname)) return;
    throw new SandboxError(
      REASONS.webhook_url_invalid,
      "validation error: url: its host is no public address",
    );
  }
}

/** @throws SandboxError not_found */
function oneOf(all: readonly Webhook[], id: string): Webhook {
  const webhook = all.find((one) => one.id === id);
  if (webhook === undefined) throw new SandboxError(REASONS.webhook_not_found, `webhook '${id}' not found`);
  return webhook;
}
