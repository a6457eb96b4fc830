import type { IncomingHttpHeaders } from "node:http";

type Coding = "gzip" | "identity";

/**
 * Picks the content coding of an answer: the acceptable one with the highest q-value, the first listed of equals. `*`
 * stands for identity first. Undefined: the client accepts none of those offered.
 */
export function chooseCoding(header: string | undefined, offered: readonly Coding[]): Coding | undefined {
  const preferences = parse(header ?? "").sort((a, b) => b.quality - a.quality);
  const refused = new Set(preferences.filter(({ quality }) => quality === 0).map(({ coding }) => coding));
  for (const { coding, quality } of preferences) {
    if (quality === 0) break;
    const found =
      coding === "*"
        ? (["identity", "gzip"] as const).find((each) => offered.includes(each) && !refused.has(each))
        : offered.find((each) => each === coding);
    if (found !== undefined) return found;
  }
  // Identity is acceptable unless it is refused.
  const isIdentityRefused = refused.has("identity") || refused.has("*");
  return offered.includes("identity") && !isIdentityRefused ? "identity" : undefined;
}

function parse(header: string): { readonly coding: string; readonly quality: number }[] {
  return header
    .split(",")
    .map((element) => {
      const [coding = "", ...parameters] = element.split(";").map((text) => text.trim().toLowerCase());
      const quality = Number(parameters.find((text) => text.startsWith("q="))?.slice(2) ?? 1);
      return { coding, quality: quality >= 0 && quality <= 1 ? quality : 1 };
    })
    .filter(({ coding }) => coding !== "");
}

/** A part of a file: `length` bytes (one or more) from `start`. */
export interface ByteRange {
  readonly start: number;
  readonly length: number;
}

/**
 * Resolves a Range header for a file of `sizeBytes`: one range or more, in the order of the header, `"whole"` for
 * everything, or `"unsatisfiable"` for invalid ranges and those past the end.
 *
 * As in Go's http.ServeContent: of several ranges those past the end are left out, an empty file is always whole, and
 * so is the answer to ranges that together exceed the file.
 */
export function parseByteRanges(
  header: string | undefined,
  sizeBytes: number,
): readonly ByteRange[] | "whole" | "unsatisfiable" {
  if (header === undefined) return "whole";
  const list = /^bytes=(.*)$/.exec(header)?.[1];
  if (list === undefined) return "unsatisfiable";
  const specs = list
    .split(",")
    .map((spec) => spec.trim())
    .filter((spec) => spec !== "");
  const ranges: ByteRange[] = [];
  for (const spec of specs) {
    const range = parseSpec(spec, sizeBytes);
    if (range === "malformed") return "unsatisfiable";
    if (range !== "past the end") ranges.push(range);
  }
  if (ranges.length === 0) return specs.length === 0 || sizeBytes === 0 ? "whole" : "unsatisfiable";
  const totalBytes = ranges.reduce((sum, { length }) => sum + length, 0);
  return totalBytes > sizeBytes ? "whole" : ranges;
}

/** `bytes 2-4/10`: position of a part in its file. */
export function contentRange({ start, length }: ByteRange, sizeBytes: number): string {
  return `bytes ${start}-${start + length - 1}/${sizeBytes}`;
}

function parseSpec(spec: string, sizeBytes: number): ByteRange | "malformed" | "past the end" {
  const match = /^(\d*)\s*-\s*(\d*)$/.exec(spec);
  if (match === null) return "malformed";
  const [, first = "", last = ""] = match;
  if (first === "") {
    if (last === "") return "malformed";
    const length = Math.min(Number(last), sizeBytes);
    return length === 0 ? "past the end" : { start: sizeBytes - length, length };
  }
  const start = Number(first);
  if (last !== "" && Number(last) < start) return "malformed";
  if (start >= sizeBytes) return "past the end";
  const end = last === "" ? sizeBytes - 1 : Math.min(Number(last), sizeBytes - 1);
  return { start, length: end - start + 1 };
}

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
  if (headers["if-none-match"] !== undefined)
    return headers["if-none-match"].trim() === "*" ? "not modified" : "proceed";
  return modifiedAtSecond <= since(headers["if-modified-since"]) ? "not modified" : "proceed";
}

/** False when If-Range refers to another version: the client then gets the whole file. */
export function isRangeWanted(headers: IncomingHttpHeaders, modifiedAtMs: number): boolean {
  const condition = headers["if-range"];
  const header = Array.isArray(condition) ? condition[0] : condition;
  return header === undefined || Date.parse(header) === Math.floor(modifiedAtMs / 1000) * 1000;
}
