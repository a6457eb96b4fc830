import { type LiveSandbox, SandboxError, type SandboxState } from "@coppice/core";
import {
  comparePositions,
  formatCursor,
  type ListOrder,
  type ListPosition,
  parseCursor,
} from "../bodies/list-cursor.js";
import { matchesMetadata, type MetadataFilter, parseMetadataFilter } from "../bodies/metadata-filter.js";

const MAX_PAGE = 100;

export interface ListQuery {
  readonly states: ReadonlySet<SandboxState>;
  readonly metadata: MetadataFilter;
  /** Milliseconds since the Unix epoch, inclusive. */
  readonly startedAfterMs: number | undefined;
  /** Name of a template or id of a snapshot. */
  readonly template: string | undefined;
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
  const order = parseOrder(query.get("order"));
  const nextToken = query.get("nextToken");
  const startedAfter = query.get("startedAfter");
  return {
    states: parseStates(query.getAll("state")),
    metadata: parseMetadataFilter(query.get("metadata") ?? ""),
    startedAfterMs: startedAfter === null ? undefined : parseTime(startedAfter),
    template: parseTemplate(query.get("template")),
    order,
    limit: parseLimit(query.get("limit")),
    after: nextToken === null || nextToken === "" ? undefined : parseCursor(nextToken, order),
  };
}

/** The query of `GET /sandboxes`: all running ones. @throws SandboxError invalid_argument */
export function parseLegacyListQuery(query: URLSearchParams): ListQuery {
  return {
    states: new Set<SandboxState>(["running"]),
    metadata: parseMetadataFilter(query.get("metadata") ?? ""),
    startedAfterMs: undefined,
    template: undefined,
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
  const sandboxes = left.slice(0, limit);
  const last = sandboxes.at(-1);
  return {
    sandboxes,
    nextToken:
      last !== undefined && left.length > sandboxes.length ? formatCursor(last.record, order) : undefined,
    totalRunning: states.has("running")
      ? found.filter(({ record }) => record.state === "running").length
      : undefined,
  };
}

function parseStates(values: readonly string[]): ReadonlySet<SandboxState> {
  const states = new Set<SandboxState>();
  for (const state of values.flatMap((value) => value.split(","))) {
    if (state === "running" || state === "paused") states.add(state);
    else if (state !== "") throw invalid("state", "expected running or paused");
  }
  return states.size === 0 ? new Set<SandboxState>(["running", "paused"]) : states;
}

function parseOrder(value: string | null): ListOrder {
  if (value === null || value === "") return "desc";
  if (value !== "asc" && value !== "desc") throw invalid("order", "expected asc or desc");
  return value;
}

/** The limit of a page, 1 to 100. @throws SandboxError invalid_argument */
export function parseLimit(value: string | null): number {
  if (value === null) return MAX_PAGE;
  const limit = /^\d{1,9}$/.test(value) ? Number(value) : 0;
  if (limit < 1 || limit > MAX_PAGE) throw invalid("limit", `expected 1 to ${MAX_PAGE}`);
  return limit;
}

function parseTemplate(value: string | null): string | undefined {
  const template = value?.trim().toLowerCase() ?? "";
  if (template.includes(":")) {
    throw new SandboxError(
      "template_reference_invalid",
      "Invalid template: tags are not supported here because sandboxes are not tag-scoped",
    );
  }
  return template === "" ? undefined : template;
}

const RFC_3339 = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-]\d\d:\d\d)$/;

/** Keeps microseconds: a time a fraction later than a sandbox's start has to exclude it. */
function parseTime(value: string): number {
  // A '+' that the client forgot to encode arrives as a space.
  const [, seconds = "", fraction = "", zone = ""] = RFC_3339.exec(value.trim().replace(" ", "+")) ?? [];
  const timeMs = Date.parse(seconds + zone);
  if (Number.isNaN(timeMs)) throw invalid("startedAfter", "expected an RFC 3339 time");
  return timeMs + Math.floor(Number(`0${fraction}`) * 1e6) / 1e3;
}

function invalid(parameter: string, reason: string): SandboxError {
  return new SandboxError("request_invalid", `validation error: ${parameter}: ${reason}`);
}
