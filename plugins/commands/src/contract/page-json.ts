import { Readable } from "node:stream";
import { isUtf8 } from "node:buffer";
import { setImmediate } from "node:timers/promises";
import { releaseMemory } from "@coppice/core";
import type { OutputPage } from "./commands.js";

/** Number of bytes at the end, 0 to 3, that begin an incomplete UTF-8 character. Invalid UTF-8 counts as complete. */
export function unfinishedBytes(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back += 1) {
    const byte = bytes[bytes.length - back] ?? 0;
    const isContinuation = (byte & 0xc0) === 0x80;
    if (!isContinuation) return characterBytes(byte) > back ? back : 0;
  }
  return 0;
}

/** Length of the character that begins with this byte. */
function characterBytes(first: number): number {
  if (first < 0xc2 || first > 0xf4) return 1;
  if (first >= 0xf0) return 4;
  return first >= 0xe0 ? 3 : 2;
}

/** Bytes that are encoded at once. */
const PART_BYTES = 48 * 1024;
/** Output encoded in one turn of the event loop; it takes 1 to 2 ms. */
const TURN_BYTES = 8 * PART_BYTES;

export type BytesInPieces = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

export interface BytesJsonOptions {
  /** Members with bytes, in pieces that need not last longer than to the next one: the first ones of the object. */
  readonly bytes: Readonly<Record<string, BytesInPieces>>;
  /** The bytes are UTF-8, what is invalid becomes U+FFFD; otherwise they are in base64. */
  readonly isText: boolean;
  /** The other members, at least one. */
  readonly fields: Readonly<Record<string, unknown>>;
}

interface Encoding {
  /** Number of bytes at the end that the next ones belong to. */
  unfinished(this: void, bytes: Buffer): number;
  encode(this: void, bytes: Buffer): Buffer;
}

/**
 * JSON of an object with long values, in parts. Several times as fast as `JSON.stringify` of the whole, whose result has
 * to be measured and converted once more; and the event loop turns meanwhile.
 */
export async function* bytesJson({ bytes, isText, fields }: BytesJsonOptions): AsyncGenerator<Buffer> {
  const encoding = isText ? TEXT : BASE64;
  let before = "{";
  for (const [name, pieces] of Object.entries(bytes)) {
    yield Buffer.from(`${before}${JSON.stringify(name)}:"`);
    yield* encoded(pieces, encoding);
    before = '",';
  }
  yield Buffer.from(`${before}${JSON.stringify(fields).slice(1)}`);
}

async function* encoded(pieces: BytesInPieces, { unfinished, encode }: Encoding): AsyncGenerator<Buffer> {
  let rest: Buffer = Buffer.alloc(0);
  let turnBytes = 0;
  for await (const piece of pieces) {
    for (let at = 0; at < piece.length; at += PART_BYTES) {
      const part = Buffer.from(piece.buffer, piece.byteOffset + at, Math.min(PART_BYTES, piece.length - at));
      const joined = rest.length > 0 ? Buffer.concat([rest, part]) : part;
      const end = joined.length - unfinished(joined);
      rest = Buffer.from(joined.subarray(end));
      if (end > 0) yield encode(joined.subarray(0, end));
      turnBytes += part.length;
      if (turnBytes < TURN_BYTES) continue;
      turnBytes = 0;
      await setImmediate();
    }
  }
  if (rest.length > 0) yield encode(rest);
}

const BASE64: Encoding = {
  unfinished: ({ length }) => length % 3,
  encode: (bytes) => Buffer.from(bytes.toString("base64"), "latin1"),
};

const TEXT: Encoding = {
  unfinished: unfinishedBytes,
  encode(bytes) {
    // JSON escapes ASCII alone, so valid UTF-8 passes through the short strings of Latin-1.
    const encoding = isUtf8(bytes) ? "latin1" : "utf8";
    return Buffer.from(JSON.stringify(bytes.toString(encoding)), encoding).subarray(1, -1);
  },
};

const MAX_CHARACTER = 4;

export interface PageBytesOptions {
  /** Only the bytes of this stream; those of all when absent. */
  readonly wanted?: OutputPage["pieces"][number]["stream"] | undefined;
  /** An incomplete character is left to the next page, unless nothing else can follow. */
  readonly isText: boolean;
}

/** The bytes of a page, and the cursor after them, which counts the bytes of all streams. */
export function pageBytes({ command, pieces, nextCursor }: OutputPage, { wanted, isText }: PageBytesOptions) {
  const bytes = Buffer.concat(pieces.flatMap(({ stream, data }) => (isWanted(stream, wanted) ? [data] : [])));
  const isRunning = command.phase === "running";
  const tail = lastOfOneStream(pieces, wanted);
  const cut = isText && (isRunning || nextCursor < command.outputBytes) ? unfinishedBytes(tail) : 0;
  // The rest of the character may be lost: the page of an ended command is complete in any case.
  if (cut === bytes.length && !isRunning) return { bytes, nextCursor };
  return { bytes: bytes.subarray(0, bytes.length - cut), nextCursor: nextCursor - cut };
}

/** The end of the page, in one stream: the cursor cannot skip another stream's output within a character. */
function lastOfOneStream(pieces: OutputPage["pieces"], wanted: PageBytesOptions["wanted"]): Uint8Array {
  const last = pieces.at(-1);
  if (last === undefined || !isWanted(last.stream, wanted)) return Buffer.alloc(0);
  const run: Uint8Array[] = [];
  let length = 0;
  for (const { stream, data } of pieces.toReversed()) {
    if (stream !== last.stream || length >= MAX_CHARACTER) break;
    run.unshift(data.subarray(-MAX_CHARACTER));
    length += data.length;
  }
  return Buffer.concat(run);
}

function isWanted(stream: string, wanted: string | undefined): boolean {
  return wanted === undefined || stream === wanted;
}

export interface PageJson {
  /** To be read once; frees the memory of the page afterwards. */
  readonly json: AsyncIterable<Buffer>;
  readonly nextCursor: number;
  readonly isSmall: boolean;
}

interface PageJsonOptions extends PageBytesOptions {
  /** More fields of the object. */
  readonly fields?: Readonly<Record<string, unknown>>;
}

/** JSON of a page in parts: `{"bytes", "next_cursor", "truncated_before"?, …fields}`, the bytes as text or in base64. */
export function pageJson(page: OutputPage, { fields, ...options }: PageJsonOptions): PageJson {
  const { bytes, nextCursor } = pageBytes(page, options);
  const { truncatedBefore } = page;
  const rest = {
    next_cursor: nextCursor,
    ...(truncatedBefore !== undefined && { truncated_before: truncatedBefore }),
    ...fields,
  };
  async function* parts(): AsyncGenerator<Buffer> {
    yield* bytesJson({ bytes: { bytes: [bytes] }, isText: options.isText, fields: rest });
    releaseMemory(bytes);
    page.release();
  }
  return { json: parts(), nextCursor, isSmall: bytes.length <= PART_BYTES };
}

/** Body of an answer with the JSON of a page. */
export async function pageBody({ json, isSmall }: PageJson): Promise<Buffer | Readable> {
  return isSmall ? Buffer.concat(await Array.fromAsync(json)) : Readable.from(json, { objectMode: false });
}
