import type { IncomingHttpHeaders } from "node:http";

const CONDITIONS = [
  "if-match",
  "if-unmodified-since",
  "if-none-match",
  "if-modified-since",
  "if-range",
] as const;

/** True when the answer depends on the client's cached version, or is partial. */
export function isConditional(headers: IncomingHttpHeaders): boolean {
  return headers.range !== undefined || CONDITIONS.some((name) => headers[name] !== undefined);
}

/** Evaluates a conditional GET for a file without an entity tag: RFC 9110, 13.2.2. Invalid dates count as absent. */
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

/** False when If-Range refers to another version: the client then gets the whole file. */
export function isRangeWanted(headers: IncomingHttpHeaders, modifiedAtMs: number): boolean {
  const condition = headers["if-range"];
  const header = Array.isArray(condition) ? condition[0] : condition;
  return header === undefined || Date.parse(header) === Math.floor(modifiedAtMs / 1000) * 1000;
}
