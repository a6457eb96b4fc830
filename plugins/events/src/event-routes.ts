import { type Router, requestOf, SandboxError, tenantOf } from "@coppice/core";
import { z } from "zod";
import { type ListContext, listOfServers, parsePage } from "./store/list-of-servers.js";
import { EVENT_TYPES } from "./store/event-body.js";
import type { WebhookRoutesOptions } from "./webhooks/webhook-routes.js";

export type EventRoutesOptions = Omit<WebhookRoutesOptions, "webhooks">;

const event = z.looseObject({ id: z.string(), timestamp: z.iso.datetime() });

/** Serves GET /events/sandboxes and GET /events/sandboxes/:id: the events of a tenant. */
export function mountEvents(router: Router, { store, events, peers }: EventRoutesOptions): void {
  const list = async (ctx: ListContext, sandbox?: string) => {
    const query = requestOf(ctx).url.searchParams;
    const page = parsePage(query);
    const types = parseTypes(query);
    // The list includes the event of a request that was just answered.
    await events.caughtUp();
    return listOfServers(ctx, {
      peers,
      page,
      own: (part) => store().events.list({ tenant: tenantOf(ctx), sandbox, types, ...part }),
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
