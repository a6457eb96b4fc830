import { SandboxError, parseSandboxId } from "@coppice/core";
import type { Sample } from "../bodies/metrics-history.js";

/** Unix seconds; undefined = open on that side. */
export interface MetricsWindow {
  readonly start: number | undefined;
  readonly end: number | undefined;
}

const MAX_IDS = 100;

/** The query of `GET /sandboxes/:id/metrics`. @throws SandboxError invalid_argument */
export function parseMetricsWindow(query: URLSearchParams): MetricsWindow {
  const start = parseSeconds("start", query.get("start"));
  const end = parseSeconds("end", query.get("end"));
  if (start !== undefined && end !== undefined && start > end) {
    throw new SandboxError("request_invalid", "validation error: start: it is later than end");
  }
  return { start, end };
}

/** Samples of a window, both ends included, by their whole seconds. */
export function samplesWithin(samples: readonly Sample[], { start, end }: MetricsWindow): readonly Sample[] {
  const isWithin = ({ atMs }: Sample): boolean => {
    const at = Math.floor(atMs / 1000);
    return (start === undefined || at >= start) && (end === undefined || at <= end);
  };
  return samples.filter(isWithin);
}

/** The ids of `GET /sandboxes/metrics`, in either form of a list. @throws SandboxError invalid_argument */
export function parseSandboxIds(query: URLSearchParams): ReadonlySet<string> {
  const ids = query
    .getAll("sandbox_ids")
    .flatMap((value) => value.split(","))
    .map((value) => value.trim())
    .filter((value) => value !== "");
  if (ids.length === 0 || ids.length > MAX_IDS) {
    throw new SandboxError("request_invalid", `validation error: sandbox_ids: expected 1 to ${MAX_IDS} ids`);
  }
  return new Set(ids.map(parseSandboxId));
}

function parseSeconds(name: string, value: string | null): number | undefined {
  if (value === null || value === "") return undefined;
  if (!/^\d{1,15}$/.test(value))
    throw new SandboxError("request_invalid", `validation error: ${name}: expected unix seconds`);
  return Number(value);
}
