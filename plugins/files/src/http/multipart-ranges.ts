import { randomBytes } from "node:crypto";
import { type ByteRange, contentRange } from "./byte-ranges.js";

/** Several parts of one file as one body: `multipart/byteranges` of RFC 9110, 14.6. */
export interface MultipartRanges {
  readonly contentType: string;
  readonly lengthBytes: number;
  /** @param read yields all bytes of one part. */
  content(read: (range: ByteRange) => AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array>;
}

/** @param type the content type of the file. */
export function multipartRanges(
  ranges: readonly ByteRange[],
  { type, sizeBytes }: { readonly type: string; readonly sizeBytes: number },
): MultipartRanges {
  const boundary = randomBytes(16).toString("hex");
  const parts = ranges.map((range, at) => ({
    range,
    head: Buffer.from(
      `${at === 0 ? "" : "\r\n"}--${boundary}\r\nContent-Range: ${contentRange(range, sizeBytes)}\r\nContent-Type: ${type}\r\n\r\n`,
    ),
  }));
  const end = Buffer.from(`\r\n--${boundary}--\r\n`);
  return {
    contentType: `multipart/byteranges; boundary=${boundary}`,
    lengthBytes: parts.reduce((sum, { range, head }) => sum + head.length + range.length, end.length),
    async *content(read) {
      for (const { range, head } of parts) {
        yield head;
        yield* read(range);
      }
      yield end;
    },
  };
}
