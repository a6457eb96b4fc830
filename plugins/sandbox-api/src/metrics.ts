import { type LiveSandbox, SandboxError } from "@coppice/core";
import { metricBody } from "./sandbox-body.js";

/** Unix seconds; undefined = open on that side. */
export interface MetricsWindow {
  readonly start: number | undefined;
  readonly end: number | undefined;
}

// Samples are promised every 5 s: a window that ended no longer ago than that may have the present one.
const SAMPLE_SECONDS = 5;

/** @throws SandboxError invalid_argument */
export function parseMetricsWindow(query: URLSearchParams): MetricsWindow {
  const start = parseSeconds("start", query.get("start"));
  const end = parseSeconds("end", query.get("end"));
  if (start !== undefined && end !== undefined && start > end) {
    throw new SandboxError("invalid_argument", "validation error: start: it is later than end");
  }
  return { start, end };
}

/** What the sandbox uses now, as a list of one sample; an empty one when the window does not reach to the present. */
export async function sampleMetrics(sandbox: LiveSandbox, { start, end }: MetricsWindow, nowMs: number) {
  const now = Math.floor(nowMs / 1000);
  if ((start !== undefined && start > now) || (end !== undefined && end < now - SAMPLE_SECONDS)) return [];
  return [metricBody(await sandbox.stats(), nowMs)];
}

function parseSeconds(name: string, value: string | null): number | undefined {
  if (value === null || value === "") return undefined;
  if (!/^\d{1,15}$/.test(value))
    throw new SandboxError("invalid_argument", `validation error: ${name}: expected unix seconds`);
  return Number(value);
}
