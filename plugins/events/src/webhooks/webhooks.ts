import { randomBytes, randomUUID } from "node:crypto";
import { type Clock, SandboxError, type TargetGuard } from "@coppice/core";
import type { EventsConfig } from "../events-config.js";
import type { EventsStore } from "../store/events-store.js";
import type { Webhook } from "../store/webhook-store.js";

export type WebhookRequest = Pick<Webhook, "name" | "url" | "types" | "isEnabled"> & {
  /** Generated when absent. */
  readonly secret: string | undefined;
};

export type WebhookChange = { readonly [K in keyof WebhookRequest]?: WebhookRequest[K] | undefined };

export interface WebhooksOptions {
  readonly settings: EventsConfig["webhooks"];
  /** Called from the start on. */
  readonly store: () => EventsStore;
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
  register(tenant: string, { secret, ...request }: WebhookRequest): Webhook {
    const { settings, store, clock } = this.#options;
    this.#checkUrl(request.url);
    const { webhooks } = store();
    if (webhooks.list(tenant).length >= settings.maxWebhooks) {
      const text = `you have reached the maximum number of webhooks (${settings.maxWebhooks})`;
      throw new SandboxError("webhook_limit_reached", text);
    }
    const webhook: Webhook = {
      ...request,
      id: randomUUID(),
      tenant,
      secret: secret ?? `whsec_${randomBytes(32).toString("base64")}`,
      createdAtMs: clock.now(),
    };
    webhooks.add(webhook);
    return webhook;
  }

  /** Oldest first. */
  list(tenant: string): readonly Webhook[] {
    return this.#options.store().webhooks.list(tenant);
  }

  /** @throws SandboxError not_found */
  get(tenant: string, id: string): Webhook {
    const webhook = this.#options.store().webhooks.find(tenant, id);
    if (webhook === undefined) throw new SandboxError("webhook_not_found", `webhook '${id}' not found`);
    return webhook;
  }

  /** Waiting deliveries go to its new URL. @throws SandboxError not_found, invalid_argument (URL). */
  update(tenant: string, id: string, change: WebhookChange): Webhook {
    const before = this.get(tenant, id);
    if (change.url !== undefined) this.#checkUrl(change.url);
    const webhook: Webhook = {
      ...before,
      ...Object.fromEntries(Object.entries(change).filter(([, value]) => value !== undefined)),
    };
    this.#options.store().webhooks.update(webhook);
    this.#options.onDue(id);
    return webhook;
  }

  /** Removes it with its pending deliveries. @throws SandboxError not_found */
  remove(tenant: string, id: string): Webhook {
    const webhook = this.get(tenant, id);
    this.#options.store().webhooks.remove(tenant, id);
    return webhook;
  }

  /** Sends a finished delivery again, whatever its outcome. @throws SandboxError not_found */
  repeat(tenant: string, id: string, delivery: string): void {
    const { store, clock, onDue } = this.#options;
    this.get(tenant, id);
    if (!store().deliveries.repeat(id, delivery, clock.now())) {
      const text = `webhook '${id}' has no delivery '${delivery}' that is done`;
      throw new SandboxError("delivery_not_found", text);
    }
    onDue(id);
  }

  #checkUrl(url: string): void {
    if (this.#options.guard.permitsHost(new URL(url).hostname)) return;
    throw new SandboxError("webhook_url_invalid", "validation error: url: its host is no public address");
  }
}
