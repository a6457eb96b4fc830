import { printLine } from "@coppice/core/client";
import { z } from "zod";
import type { ServerOptions } from "../connection/connection.js";
import { apiOf, refused } from "../connection/open-sandbox.js";
import { printJson, printRows } from "../connection/print.js";

const event = z.looseObject({ type: z.string(), timestamp: z.string(), eventData: z.unknown() });

/** Tells the state of a sandbox or how it ended, and its events, the oldest first. */
export async function why(
  id: string,
  { json, ...server }: ServerOptions & { readonly json?: true | undefined },
): Promise<number> {
  const api = apiOf(server);
  const { data, error } = await api.GET("/sandboxes/{sandboxID}", { params: { path: { sandboxID: id } } });
  if (error !== undefined && error.code !== 404) throw refused(error);
  const words = error?.message ?? `${data?.state} since ${data?.startedAt}, until ${data?.endAt}`;
  // The SDK has no types of this path.
  const get = api.GET as unknown as (path: string) => Promise<{ readonly data?: unknown }>;
  const { data: listed } = await get(`/events/sandboxes/${encodeURIComponent(id)}?orderAsc=true`);
  // A server without the plugin `events` has none.
  const events = z.array(event).safeParse(listed).data ?? [];
  if (json) printJson({ id, state: words, events });
  else {
    printLine(words);
    if (events.length > 0)
      printRows(
        ["at", "event", "details"],
        events.map(({ timestamp, type, eventData }) => ({
          at: timestamp,
          event: type,
          details: eventData === null ? "" : JSON.stringify(eventData),
        })),
        {},
      );
  }
  return data === undefined && events.length === 0 ? 2 : 0;
}
