import {
  type CreationContext,
  gatherAnswers,
  type Peers,
  type Router,
  requestOf,
  SandboxError,
  tenantOf,
} from "@coppice/core";
import { z } from "zod";
import type { EventBody } from "./store/event-body.js";
import { EVENT_TYPES } from "./store/event-type.js";
import { type Page, parsePage } from "./store/parse-page.js";
import type { WebhookRoutesOptions } from "./webhooks/webhook-routes.js";

export interface EventRoutesOptions extends Omit<WebhookRoutesOptions, "webhooks"> {
  readonly peers: Pick<Peers, "gather">;
}

/** Events as another server wrote them. */
const listed = z.array(z.looseObject({ id: z.string(), timestamp: z.iso.datetime() }));
type Listed = Pick<EventBody, "id" | "timestamp">;

/** Serves GET /events/sandboxes and GET /events/sandboxes/:id: the events of a tenant. */
export function mountEvents(router: Router, { store, events, peers }: EventRoutesOptions): void {
  const list = async (ctx: CreationContext, sandbox?: string) => {
    const { url, isPassedOn } = requestOf(ctx);
    const query = url.searchParams;
    const page = parsePage(query);
    const types = parseTypes(query);
    // The list includes the event of a request that was just answered.
    await events.caughtUp();
    const answers = await gatherAnswers(ctx, peers);
    const wanted = { tenant: tenantOf(ctx), sandbox, types, ...page };
    if (!isPassedOn && answers.length === 0) return store().events.list(wanted);
    // Of a page, any part may be with any server.
    const own = store().events.list({ ...wanted, offset: 0, limit: page.offset + page.limit });
    return isPassedOn
      ? own
      : mergedEvents(
          own,
          answers.flatMap(({ body }) => listed.parse(body)),
          page,
        );
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

/** The page of what all servers have listed, each event once. */
function mergedEvents(
  own: readonly Listed[],
  others: readonly Listed[],
  { offset, limit, oldestFirst }: Page,
): readonly Listed[] {
  const direction = oldestFirst ? 1 : -1;
  const known = new Map([...own, ...others].map((event) => [event.id, event]));
  return [...known.values()]
    .toSorted((a, b) => direction * (Date.parse(a.timestamp) - Date.parse(b.timestamp)))
    .slice(offset, offset + limit);
}

function parseTypes(query: URLSearchParams): readonly string[] {
  const types = query.getAll("types").flatMap((text) => text.split(",").filter(Boolean));
  const unknown = types.find((type) => !EVENT_TYPES.includes(type));
  if (unknown === undefined) return [...new Set(types)];
  const text = `validation error: types: '${unknown.slice(0, 64)}' is none of ${EVENT_TYPES.join(", ")}`;
  throw new SandboxError("request_invalid", text);
}
