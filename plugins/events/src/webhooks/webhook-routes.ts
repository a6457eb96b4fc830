import {
  type Peers,
  permit,
  readJsonBody,
  requestOf,
  requireOperator,
  type Router,
  SandboxError,
  type SandboxEvents,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import { type ListContext, listOfServers, parsePage } from "../store/list-of-servers.js";
import type { Delivery, Webhook } from "../store/delivery-table.js";
import type { EventsStore } from "../store/events-store.js";
import type { Webhooks } from "./webhooks.js";
import { EVENT_TYPES } from "../store/event-log.js";

interface WebhookRoutesOptions {
  readonly webhooks: Webhooks;
  readonly store: () => EventsStore;
  readonly events: SandboxEvents;
  readonly peers: Pick<Peers, "gather" | "hold">;
}

const MAX_NAME = 256;
const MAX_URL = 2048;
const MAX_SECRET = 512;

const name = z.string().max(MAX_NAME);

const url = z
  .string()
  .max(MAX_URL)
  .refine((text) => {
    if (!URL.canParse(text)) return false;
    const { protocol, username, password } = new URL(text);
    return /^https?:$/.test(protocol) && username === "" && password === "";
  }, "expected an http or https URL without a user and a password");

const events = z
  .array(z.enum(EVENT_TYPES, `expected some of ${EVENT_TYPES.join(", ")}`))
  .min(1)
  .transform((types) => [...new Set(types)]);

const signatureSecret = z
  .string()
  .min(1)
  .max(MAX_SECRET)
  .refine(
    (text) => !text.startsWith("whsec_") || /^whsec_[A-Za-z0-9+/]{16,}={0,2}$/.test(text),
    "expected base64 after whsec_",
  );

const webhookFields = z.object({ name, url, events, enabled: z.boolean(), signatureSecret });

/** The body of PATCH /events/webhooks/:id. */
const webhookChangeBody = webhookFields.partial();

/** The body of POST /events/webhooks. */
const newWebhookBody = webhookFields.extend({
  name: name.default(""),
  enabled: z.boolean().default(true),
  signatureSecret: signatureSecret.optional(),
});

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
    has: (id, tenant) => store().deliveries.isOf(tenant, id),
  });

  const deliveries = async (ctx: ListContext, webhook?: string) => {
    const page = parsePage(requestOf(ctx).url.searchParams);
    await events.caughtUp();
    return listOfServers(ctx, {
      peers,
      page,
      own: (part) =>
        store()
          .deliveries.page({ tenant: tenantOf(ctx), webhook, ...part })
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

type EventRoutesOptions = Omit<WebhookRoutesOptions, "webhooks">;

const event = z.looseObject({ id: z.string(), timestamp: z.iso.datetime() });

/** Serves GET /events/sandboxes and GET /events/sandboxes/:id: the events of a tenant, or for the operator of all. */
export function mountEvents(router: Router, { store, events, peers }: EventRoutesOptions): void {
  const list = async (ctx: ListContext, sandbox?: string) => {
    const query = requestOf(ctx).url.searchParams;
    const page = parsePage(query);
    const types = parseTypes(query);
    const isOfAll = query.get("allTenants") === "true";
    if (isOfAll) requireOperator(ctx);
    const tenant = isOfAll ? undefined : tenantOf(ctx);
    // The list includes the event of a request that was just answered.
    await events.caughtUp();
    return listOfServers(ctx, {
      peers,
      page,
      own: (part) => store().events.list({ tenant, sandbox, types, ...part }),
      entry: event,
      timeOf: ({ timestamp }) => timestamp,
    });
  };

  router.get("/events/sandboxes", async (ctx) => {
    ctx.body = await list(ctx);
  });

  // An unknown sandbox has no events: E2B, too, answers with an empty list.
  router.get("/events/sandboxes/:id", async (ctx) => {
    const [id = ""] = (ctx.params["id"] ?? "").split("-");
    ctx.body = await list(ctx, id);
  });
}

function parseTypes(query: URLSearchParams): readonly string[] {
  const types = query.getAll("types").flatMap((text) => text.split(",").filter(Boolean));
  const unknown = types.find((type) => !EVENT_TYPES.includes(type));
  if (unknown === undefined) return [...new Set(types)];
  const text = `validation error: types: '${unknown.slice(0, 64)}' is none of ${EVENT_TYPES.join(", ")}`;
  throw new SandboxError("request_invalid", text);
}
