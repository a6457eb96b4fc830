import { randomBytes } from "node:crypto";
import { SandboxError } from "@coppice/core";
import type { OpenFile, PositionalReads } from "@coppice/core/backend";
import { type ByteRange, contentRange } from "../headers/request-headers.js";

/** Shared by all downloads: a block each costs memory, and larger ones are faster only while few are read. */
const MEMORY_BYTES = 16 * 2 ** 20;
const LARGEST_BLOCK_BYTES = 2 ** 19;
const SMALLEST_BLOCK_BYTES = 2 ** 16;
const BLOCKS_EACH = 2;

let active = 0;

/**
 * Reads a range, a block ahead of its consumer. A block is valid until the next one is asked for: a pipeline asks when
 * a block that fills its stream's buffer has left it, and the smallest block does.
 */
export async function* blocksOf(
  file: PositionalReads,
  { start, length }: ByteRange,
): AsyncGenerator<Uint8Array> {
  active++;
  const share = 2 ** Math.floor(Math.log2(MEMORY_BYTES / BLOCKS_EACH / active));
  const blockBytes = Math.min(LARGEST_BLOCK_BYTES, Math.max(SMALLEST_BLOCK_BYTES, share));
  const blocks = Array.from({ length: BLOCKS_EACH }, () => Buffer.allocUnsafeSlow(blockBytes));
  let position = start;
  let turn = 0;
  const end = start + length;
  const read = async (): Promise<Uint8Array> => {
    const block = blocks[turn++ % BLOCKS_EACH]!.subarray(0, end - position);
    const count = await file.read(block, position);
    position += count;
    const bytes = block.subarray(0, count);
    // Of a file that is cut and grows again: too small to hold the consumer up until it has left.
    return count < SMALLEST_BLOCK_BYTES ? Buffer.from(bytes) : bytes;
  };
  const readNext = (): Promise<Uint8Array> => {
    const block = read();
    // Its error is thrown when the consumer asks for it.
    block.catch(() => undefined);
    return block;
  };
  let next = readNext();
  try {
    for (;;) {
      const block = await next;
      if (block.byteLength === 0) return;
      // Beyond the end this reads nothing.
      next = readNext();
      yield block;
    }
  } finally {
    active--;
    // The memory, and the file, are in use until then.
    await next.catch(() => undefined);
  }
}

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
  if (only !== undefined && others.length === 0)
    return {
      status: 206,
      contentType: type,
      contentRange: contentRange(only, sizeBytes),
      lengthBytes: only.length,
      content: exactly(file, only),
    };
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
