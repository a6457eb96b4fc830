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
