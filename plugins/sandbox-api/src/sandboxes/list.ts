import {
  firstPage,
  type LiveSandbox,
  pageFields,
  parseInput,
  SandboxError,
  type SandboxRecord,
} from "@coppice/core";
import { z } from "zod";

type ListOrder = "asc" | "desc";

/** The last entry of a page: the next page starts behind it, also after changes in between. */
export type ListPosition = Pick<SandboxRecord, "startedAtMs" | "id">;

/** By start, then by id; the later, the greater. */
export function comparePositions(a: ListPosition, b: ListPosition): number {
  if (a.startedAtMs !== b.startedAtMs) return a.startedAtMs - b.startedAtMs;
  return a.id < b.id ? -1 : a.id > b.id ? 1 : 0;
}

/** A position as the opaque text that clients send back. */
export function formatCursor({ startedAtMs, id }: ListPosition, order: ListOrder): string {
  const suffix = order === "asc" ? "__asc" : "";
  return Buffer.from(`${new Date(startedAtMs).toISOString()}__${id}${suffix}`).toString("base64url");
}

/** @throws SandboxError invalid_argument for an invalid cursor, or one of the other order. */
export function parseCursor(text: string, order: ListOrder): ListPosition {
  const [time = "", id = "", suffix, ...more] = Buffer.from(text, "base64url").toString("utf8").split("__");
  const startedAtMs = Date.parse(time);
  const isOfOrder = suffix === (order === "asc" ? "asc" : undefined);
  if (Number.isNaN(startedAtMs) || !/^[a-z0-9]+$/.test(id) || !isOfOrder || more.length > 0)
    throw new SandboxError("cursor_invalid", "Invalid next token");
  return { startedAtMs, id };
}

type SandboxState = SandboxRecord["state"];

const ORDERS = ["asc", "desc"] as const satisfies readonly ListOrder[];
const STATES = ["running", "paused"] as const satisfies readonly SandboxState[];
const RFC_3339 = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

/** An empty value of a query counts as absent. */
const optional = <S extends z.ZodType>(schema: S) =>
  z.preprocess((text) => (text === "" ? undefined : text), schema.optional());

const listQuery = z.object({
  ...pageFields,
  order: optional(z.enum(ORDERS, "expected asc or desc")),
  // Joined by commas where it comes several times.
  state: z
    .string()
    .transform((text) => text.split(",").filter(Boolean))
    .refine((states) => states.every(isListed), "expected running or paused"),
  metadata: z.string().default(""),
  startedAfter: z.string().transform(timeMs).refine(Number.isFinite, "expected an RFC 3339 time").optional(),
  template: z.string().default(""),
  allTenants: optional(z.stringbool()),
});

export interface ListQuery {
  readonly states: ReadonlySet<SandboxState>;
  readonly metadata: MetadataFilter;
  /** Milliseconds since the Unix epoch, inclusive. */
  readonly startedAfterMs: number | undefined;
  /** Name of a template or id of a snapshot. */
  readonly template: string | undefined;
  /** Sandboxes of all tenants, for the operator. */
  readonly ofAllTenants: boolean;
  readonly order: ListOrder;
  readonly limit: number;
  /** Entries come after this one. */
  readonly after: ListPosition | undefined;
}

export interface ListPage {
  readonly sandboxes: readonly LiveSandbox[];
  /** Undefined on the last page. */
  readonly nextToken: string | undefined;
  /** Running ones on all pages; undefined when only paused ones were requested. */
  readonly totalRunning: number | undefined;
}

/** The query of `GET /v2/sandboxes`. @throws SandboxError invalid_argument */
export function parseListQuery(query: URLSearchParams): ListQuery {
  const state = query.getAll("state").join(",");
  const asked = parseInput(listQuery, { ...Object.fromEntries(query), state });
  const { order = "desc", limit, nextToken } = asked;
  const states = asked.state.filter(isListed);
  return {
    states: new Set(states.length === 0 ? STATES : states),
    metadata: parseMetadataFilter(asked.metadata),
    startedAfterMs: asked.startedAfter,
    template: parseTemplate(asked.template),
    ofAllTenants: asked.allTenants ?? false,
    order,
    limit,
    after: nextToken === "" ? undefined : parseCursor(nextToken, order),
  };
}

/** The query of `GET /sandboxes`: all running ones. @throws SandboxError invalid_argument */
export function parseLegacyListQuery(query: URLSearchParams): ListQuery {
  return {
    states: new Set<SandboxState>(["running"]),
    metadata: parseMetadataFilter(query.get("metadata") ?? ""),
    startedAfterMs: undefined,
    template: undefined,
    ofAllTenants: false,
    order: "desc",
    limit: Number.POSITIVE_INFINITY,
    after: undefined,
  };
}

export function listSandboxes(all: readonly LiveSandbox[], query: ListQuery): ListPage {
  const {
    states,
    metadata,
    startedAfterMs = Number.NEGATIVE_INFINITY,
    template,
    order,
    limit,
    after,
  } = query;
  const direction = order === "asc" ? 1 : -1;
  const found = all
    .filter(
      ({ record }) =>
        states.has(record.state) &&
        record.startedAtMs >= startedAfterMs &&
        (template === undefined || record.template === template || record.snapshot === template) &&
        matchesMetadata(record.metadata, metadata),
    )
    .sort((a, b) => direction * comparePositions(a.record, b.record));
  const left =
    after === undefined
      ? found
      : found.filter(({ record }) => direction * comparePositions(record, after) > 0);
  const { entries, nextToken } = firstPage(left, limit, ({ record }) => formatCursor(record, order));
  return {
    sandboxes: entries,
    nextToken,
    totalRunning: states.has("running")
      ? found.filter(({ record }) => record.state === "running").length
      : undefined,
  };
}

function isListed(state: string): state is (typeof STATES)[number] {
  return (STATES as readonly string[]).includes(state);
}

function parseTemplate(text: string): string | undefined {
  const template = text.trim().toLowerCase();
  if (template.includes(":"))
    throw new SandboxError(
      "template_reference_invalid",
      "Invalid template: tags are not supported here because sandboxes are not tag-scoped",
    );
  return template === "" ? undefined : template;
}

/** Keeps microseconds: a time a fraction later than a sandbox's start has to exclude it. NaN for no RFC 3339 time. */
function timeMs(value: string): number {
  // A '+' that the client forgot to encode arrives as a space.
  const [, seconds = "", fraction = "", zone = ""] = RFC_3339.exec(value.trim().replace(" ", "+")) ?? [];
  return Date.parse(seconds + zone) + Math.floor(Number(`0${fraction}`) * 1e6) / 1e3;
}

/** Pairs that a sandbox's metadata must all have. */
type MetadataFilter = ReadonlyMap<string, string>;

/**
 * Parses the `metadata` query value, which the HTTP layer has decoded once. The SDKs encode keys and values, then the
 * pairs, then the query, so two layers are left; a plain `user=abc` has none.
 * @throws SandboxError invalid_argument
 */
function parseMetadataFilter(value: string): MetadataFilter {
  const filter = new Map<string, string>();
  const pairs = decode(value);
  if (pairs === "") return filter;
  for (const pair of pairs.split("&")) {
    const split = pair.indexOf("=");
    if (split < 1) throw invalid("expected key=value pairs");
    filter.set(decode(pair.slice(0, split)), decode(pair.slice(split + 1)));
  }
  return filter;
}

/** True when the metadata has every pair of the filter. */
function matchesMetadata(metadata: Readonly<Record<string, string>>, filter: MetadataFilter): boolean {
  return [...filter].every(([key, value]) => Object.hasOwn(metadata, key) && metadata[key] === value);
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    throw invalid("a '%' that encodes nothing");
  }
}

function invalid(reason: string): SandboxError {
  return new SandboxError("request_invalid", `validation error: metadata: ${reason}`);
}
