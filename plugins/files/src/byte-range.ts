/** A part of a file: `length` bytes (one or more) from `start`. */
export interface ByteRange {
  readonly start: number;
  readonly length: number;
}

/**
 * What a Range header asks of a file of `sizeBytes`: one range, `"whole"` for everything, or
 * `"unsatisfiable"` for what is no byte range or lies past the end.
 *
 * An empty file is always whole, and so is the answer to several ranges, which the server may ignore.
 */
export function parseByteRange(
  header: string | undefined,
  sizeBytes: number,
): ByteRange | "whole" | "unsatisfiable" {
  if (header === undefined || sizeBytes === 0) return "whole";
  const specs = /^bytes=(.*)$/.exec(header)?.[1]?.split(",");
  if (specs === undefined) return "unsatisfiable";
  if (specs.length > 1) return "whole";
  const [, first = "", last = ""] = /^\s*(\d*)\s*-\s*(\d*)\s*$/.exec(specs[0] ?? "") ?? [];
  if (first === "") {
    const length = Math.min(Number(last), sizeBytes);
    return length === 0 ? "unsatisfiable" : { start: sizeBytes - length, length };
  }
  const start = Number(first);
  const end = last === "" ? sizeBytes - 1 : Math.min(Number(last), sizeBytes - 1);
  return start >= sizeBytes || (last !== "" && Number(last) < start)
    ? "unsatisfiable"
    : { start, length: end - start + 1 };
}
