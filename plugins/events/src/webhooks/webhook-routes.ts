import {
  type CreationContext,
  type Peers,
  permit,
  type Router,
  readJsonBody,
  requestOf,
  type SandboxEvents,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import { listOfServers } from "../store/list-of-servers.js";
import type { Delivery } from "../store/delivery-store.js";
import type { EventsStore } from "../store/events-store.js";
import { parsePage } from "../store/parse-page.js";
import type { Webhook } from "../store/webhook-store.js";
import { newWebhookBody, webhookChangeBody } from "./webhook-body.js";
import type { Webhooks } from "./webhooks.js";

export interface WebhookRoutesOptions {
  readonly webhooks: Webhooks;
  readonly store: () => EventsStore;
  readonly events: SandboxEvents;
  readonly peers: Pick<Peers, "gather" | "hold">;
}

const REPEATED = /^\/events\/webhooks\/[^/]+\/deliveries\/([^/]+)\/repeat\/?$/;
const listedDelivery = z.looseObject({ id: z.string(), createdAt: z.iso.datetime() });

/** Serves /events/webhooks: a tenant's webhooks and their deliveries, for its admins. */
export function mountWebhooks(
  router: Router,
  { webhooks, store, events, peers }: WebhookRoutesOptions,
): void {
  const admin = permit("admin");

  peers.hold({
    kind: "delivery",
    surface: "api",
    inPath: (pathname) => REPEATED.exec(pathname)?.[1],
    has: (id, tenant) => store().deliveries.has(tenant, id),
  });

  const deliveries = async (ctx: CreationContext, webhook?: string) => {
    const page = parsePage(requestOf(ctx).url.searchParams);
    await events.caughtUp();
    return listOfServers(ctx, {
      peers,
      page,
      own: (part) =>
        store()
          .deliveries.list({ tenant: tenantOf(ctx), webhook, ...part })
          .map(deliveryBody),
      entry: listedDelivery,
      timeOf: ({ createdAt }) => createdAt,
    });
  };

  router.get("/events/webhooks", admin, async (ctx) => {
    ctx.body = (await webhooks.list(tenantOf(ctx))).map(webhookBody);
  });

  router.post("/events/webhooks", admin, async (ctx) => {
    const body = await readJsonBody(ctx.req, newWebhookBody);
    const { signatureSecret: secret, enabled: isEnabled, events: types, ...rest } = body;
    const webhook = await webhooks.register(tenantOf(ctx), { ...rest, types, isEnabled, secret });
    ctx.status = 201;
    // The only time that a secret is shown, and only a generated one.
    const generated = secret === undefined ? { signatureSecret: webhook.secret } : {};
    ctx.body = { ...webhookBody(webhook), ...generated };
  });

  // Before the route of one webhook, which would take the word for an id.
  router.get("/events/webhooks/deliveries", admin, async (ctx) => {
    ctx.body = await deliveries(ctx);
  });

  router.get("/events/webhooks/:id", admin, async (ctx) => {
    ctx.body = webhookBody(await webhooks.get(tenantOf(ctx), ctx.params["id"] ?? ""));
  });

  router.patch("/events/webhooks/:id", admin, async (ctx) => {
    const tenant = tenantOf(ctx);
    const { id } = await webhooks.get(tenant, ctx.params["id"] ?? "");
    const body = await readJsonBody(ctx.req, webhookChangeBody);
    const { signatureSecret: secret, enabled: isEnabled, events: types, ...rest } = body;
    ctx.body = webhookBody(await webhooks.update(tenant, id, { ...rest, types, isEnabled, secret }));
  });

  router.delete("/events/webhooks/:id", admin, async (ctx) => {
    ctx.body = webhookBody(await webhooks.remove(tenantOf(ctx), ctx.params["id"] ?? ""));
  });

  router.get("/events/webhooks/:id/deliveries", admin, async (ctx) => {
    const { id } = await webhooks.get(tenantOf(ctx), ctx.params["id"] ?? "");
    ctx.body = await deliveries(ctx, id);
  });

  router.post("/events/webhooks/:id/deliveries/:delivery/repeat", admin, async (ctx) => {
    await webhooks.repeat(tenantOf(ctx), ctx.params["id"] ?? "", ctx.params["delivery"] ?? "");
    ctx.status = 202;
    ctx.body = {};
  });
}

/** A webhook without its secret, for clients. */
function webhookBody({ id, tenant, name, createdAtMs, isEnabled, url, types }: Webhook) {
  return {
    id,
    teamId: tenant,
    name,
    createdAt: timeText(createdAtMs),
    enabled: isEnabled,
    url,
    events: types,
  };
}

function deliveryBody(delivery: Delivery) {
  const time = (atMs: number | undefined) => (atMs === undefined ? null : timeText(atMs));
  return {
    id: delivery.id,
    webhookId: delivery.webhook,
    eventId: delivery.event,
    eventType: delivery.type,
    sandboxId: delivery.sandbox,
    status: delivery.state,
    attempts: delivery.attempts,
    createdAt: timeText(delivery.createdAtMs),
    nextAttemptAt: time(delivery.nextAtMs),
    finishedAt: time(delivery.endedAtMs),
    responseStatus: delivery.status ?? null,
    error: delivery.error ?? null,
  };
}

function timeText(atMs: number): string {
  return new Date(atMs).toISOString();
}
