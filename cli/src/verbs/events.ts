import { setTimeout as pause } from "node:timers/promises";
import { messageOf, printFailure, printLine } from "@coppice/core/client";
import { z } from "zod";
import type { ServerOptions } from "../connection/connection.js";
import { apiOf } from "../connection/open-sandbox.js";
import { chosenColumns, type RowOptions } from "../connection/print.js";

const WIDTHS = { at: 24, tenant: 10, sandbox: 22, template: 12, event: 12, details: 0 };
const PREFIX = /^sandbox\.lifecycle\./;
/** Most that the server has in a page. */
const PAGE = 100;
/** Ids of printed events that are remembered; more than a page. */
const REMEMBERED = 1000;
const POLL_MS = 1_000;
const LONGEST_WAIT_MS = 30_000;
const ANSWER_MS = 30_000;

const event = z.looseObject({
  id: z.string(),
  timestamp: z.string(),
  type: z.string(),
  sandboxId: z.string(),
  sandboxTeamId: z.string(),
  sandboxTemplateId: z.string(),
  eventData: z.unknown(),
});

type Event = z.infer<typeof event>;

interface EventsOptions extends ServerOptions, RowOptions {
  readonly follow?: true | undefined;
  readonly sandbox?: string | undefined;
  readonly limit: number;
  readonly allTenants?: true | undefined;
}

/**
 * Prints the newest events, the oldest of them first, and with `follow` each later one, once: what happened during a lost
 * connection is printed after it, as long as the server keeps it.
 */
export async function events({ follow, limit, ...options }: EventsOptions): Promise<number> {
  const print = printer(options);
  const reader = new EventReader(options);
  print(await reader.newest(limit));
  if (!follow) return 0;
  for (let waitMs = POLL_MS; ;) {
    await pause(waitMs);
    try {
      print(await reader.next());
      waitMs = POLL_MS;
    } catch (error) {
      if (!mayPass(error)) throw error;
      if (waitMs === POLL_MS)
        printFailure(`the server does not answer, and is asked again: ${textOf(error)}`);
      waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
    }
  }
}

function printer({ json, fields }: RowOptions): (found: readonly Event[]) => void {
  const columns = chosenColumns(Object.keys(WIDTHS), fields) as readonly (keyof typeof WIDTHS)[];
  const isTable = process.stdout.isTTY && !json;
  const line = (cells: Readonly<Record<keyof typeof WIDTHS, string>>): void => {
    const texts = columns.map((name) => cells[name].replaceAll(/\s+/g, " "));
    printLine(
      isTable
        ? texts
            .map((text, at) => text.padEnd(WIDTHS[columns[at] ?? "details"]))
            .join("  ")
            .trimEnd()
        : texts.join("\t"),
    );
  };
  if (isTable) line(Object.fromEntries(columns.map((name) => [name, name.toUpperCase()])) as never);
  return (found) => {
    for (const each of found)
      if (json) printLine(JSON.stringify(each));
      else
        line({
          at: each.timestamp,
          tenant: each.sandboxTeamId,
          sandbox: each.sandboxId,
          template: each.sandboxTemplateId,
          event: each.type.replace(PREFIX, ""),
          details: each.eventData === null ? "" : JSON.stringify(each.eventData),
        });
  };
}

/** Reads events, the newest page first: pages move on while new events come. */
class EventReader {
  readonly #options: Pick<EventsOptions, "sandbox" | "allTenants"> & ServerOptions;
  /** Ids of known events, the newest first: at least a page of them, if there are as many. */
  #known: readonly string[] = [];

  constructor(options: Pick<EventsOptions, "sandbox" | "allTenants"> & ServerOptions) {
    this.#options = options;
  }

  /** That many, the oldest first. */
  async newest(limit: number): Promise<readonly Event[]> {
    return (await this.#read(Math.max(limit, PAGE))).slice(-limit);
  }

  /** All that are not known yet, the oldest first. */
  next(): Promise<readonly Event[]> {
    return this.#read(Infinity);
  }

  async #read(most: number): Promise<readonly Event[]> {
    const known = new Set(this.#known);
    const found = new Map<string, Event>();
    for (let offset = 0; found.size < most; offset += PAGE) {
      const page = await this.#page(offset);
      for (const one of page) if (!known.has(one.id)) found.set(one.id, one);
      if (page.length < PAGE || page.some(({ id }) => known.has(id))) break;
    }
    this.#known = [...found.keys(), ...this.#known].slice(0, REMEMBERED);
    return [...found.values()].toReversed();
  }

  /** @throws Error with the status of a refusal */
  async #page(offset: number): Promise<readonly Event[]> {
    const { sandbox, allTenants, ...server } = this.#options;
    const query = new URLSearchParams({ limit: String(PAGE), offset: String(offset) });
    if (allTenants) query.set("allTenants", "true");
    const path = sandbox === undefined ? "" : `/${encodeURIComponent(sandbox)}`;
    // The SDK has no types of this path.
    const get = apiOf(server).GET as unknown as (
      path: string,
      init: object,
    ) => Promise<{ readonly data?: unknown; readonly error?: unknown; readonly response: Response }>;
    const { data, error, response } = await get(`/events/sandboxes${path}?${query.toString()}`, {
      signal: AbortSignal.timeout(ANSWER_MS),
    });
    if (data !== undefined) return event.array().parse(data);
    const { message } = z.object({ message: z.string() }).safeParse(error).data ?? {};
    throw Object.assign(new Error(message ?? `the server answers ${response.status}`), {
      status: response.status,
    });
  }
}

/** True for a failure after which the same request may succeed: no answer, or one of a server that cannot now. */
function mayPass(error: unknown): boolean {
  const { status, name } = error as { readonly status?: number; readonly name?: string };
  if (status !== undefined) return status >= 500 || status === 429;
  return error instanceof TypeError || name === "TimeoutError" || name === "AbortError";
}

function textOf(error: unknown): string {
  const { cause } = error as { readonly cause?: unknown };
  return messageOf(cause ?? error);
}
