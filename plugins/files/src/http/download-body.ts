import { randomBytes } from "node:crypto";
import { SandboxError } from "@coppice/core";
import type { OpenFile } from "@coppice/core/backend";
import { blocksOf } from "./direct-blocks.js";
import { type ByteRange, contentRange } from "../headers/byte-ranges.js";

/** Asking for the file itself takes as long as reading some pieces of it. */
const DIRECT_FROM_BYTES = 262_144;

/** An answer with a file, or parts of it. */
interface DownloadBody {
  readonly status: 200 | 206;
  readonly contentType: string;
  readonly contentRange?: string;
  /** undefined when only reading all of it can tell. */
  readonly lengthBytes: number | undefined;
  readonly content: AsyncIterable<Uint8Array>;
}

export function wholeBody(file: OpenFile, contentType: string, isSizeKnown: boolean): DownloadBody {
  const { sizeBytes } = file.info;
  return {
    status: 200,
    contentType,
    lengthBytes: isSizeKnown ? sizeBytes : undefined,
    content: isSizeKnown ? exactly(file, { start: 0, length: sizeBytes }) : file.content(),
  };
}

/** Several parts are one body: `multipart/byteranges` of RFC 9110, 14.6. */
export function partialBody(file: OpenFile, type: string, ranges: readonly ByteRange[]): DownloadBody {
  const { sizeBytes } = file.info;
  const [only, ...others] = ranges;
  if (only !== undefined && others.length === 0) {
    return {
      status: 206,
      contentType: type,
      contentRange: contentRange(only, sizeBytes),
      lengthBytes: only.length,
      content: exactly(file, only),
    };
  }
  const boundary = randomBytes(16).toString("hex");
  const parts = ranges.map((range, at) => ({
    range,
    head: Buffer.from(
      `${at === 0 ? "" : "\r\n"}--${boundary}\r\nContent-Range: ${contentRange(range, sizeBytes)}\r\nContent-Type: ${type}\r\n\r\n`,
    ),
  }));
  const end = Buffer.from(`\r\n--${boundary}--\r\n`);
  async function* content(): AsyncGenerator<Uint8Array> {
    for (const { range, head } of parts) {
      yield head;
      yield* exactly(file, range);
    }
    yield end;
  }
  return {
    status: 206,
    contentType: `multipart/byteranges; boundary=${boundary}`,
    lengthBytes: parts.reduce((sum, { range, head }) => sum + head.length + range.length, end.length),
    content: content(),
  };
}

/** Exactly the promised bytes, also of a file that grows meanwhile; when it shrinks, the answer breaks off. */
async function* exactly(file: OpenFile, { start, length }: ByteRange): AsyncGenerator<Uint8Array> {
  let leftBytes = length;
  if (leftBytes === 0) return;
  const direct = length >= DIRECT_FROM_BYTES ? await file.direct?.() : undefined;
  const content =
    direct === undefined ? file.content({ offset: start, length }) : blocksOf(direct, { start, length });
  for await (const chunk of content) {
    leftBytes -= chunk.length;
    yield chunk;
  }
  if (leftBytes > 0) throw new SandboxError("file_shrank", "the file shrank while it was read");
}
