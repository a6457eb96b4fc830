import { isUtf8 } from "node:buffer";
import { setImmediate } from "node:timers/promises";
import { unfinishedBytes } from "./unfinished-bytes.js";

/** Bytes that are encoded at once. */
export const PART_BYTES = 48 * 1024;
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
