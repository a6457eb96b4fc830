import type { IncomingHttpHeaders } from "node:http";

const CONDITIONS = [
  "if-match",
  "if-unmodified-since",
  "if-none-match",
  "if-modified-since",
  "if-range",
] as const;

/** True when the answer depends on the client's idea of the file, or is a part of it. */
export function isConditional(headers: IncomingHttpHeaders): boolean {
  return headers.range !== undefined || CONDITIONS.some((name) => headers[name] !== undefined);
}

/**
 * Evaluates a conditional GET for a file without an entity tag: RFC 9110, 13.2.2. Dates that do
 * not parse count as absent.
 */
export function checkPreconditions(
  headers: IncomingHttpHeaders,
  modifiedAtMs: number,
): "proceed" | "not modified" | "failed" {
  const modifiedAtSecond = Math.floor(modifiedAtMs / 1000);
  const since = (date: string | undefined): number => Math.floor(Date.parse(date ?? "") / 1000);
  if (headers["if-match"] !== undefined) {
    if (headers["if-match"].trim() !== "*") return "failed";
  } else if (modifiedAtSecond > since(headers["if-unmodified-since"])) return "failed";
  if (headers["if-none-match"] !== undefined) {
    return headers["if-none-match"].trim() === "*" ? "not modified" : "proceed";
  }
  return modifiedAtSecond <= since(headers["if-modified-since"]) ? "not modified" : "proceed";
}

/** False when If-Range says that the client's part belongs to another version: then it gets everything. */
export function isRangeWanted(headers: IncomingHttpHeaders, modifiedAtMs: number): boolean {
  const condition = headers["if-range"];
  const header = Array.isArray(condition) ? condition[0] : condition;
  return header === undefined || Date.parse(header) === Math.floor(modifiedAtMs / 1000) * 1000;
}
