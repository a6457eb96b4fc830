import { isUtf8 } from "node:buffer";
import { Readable } from "node:stream";
import { StringDecoder } from "node:string_decoder";
import { setImmediate } from "node:timers/promises";
import { releaseMemory } from "@coppice/core";
import type { LogPage } from "./commands.js";
import { pageBytes, type PageBytesOptions } from "./page-bytes.js";

/** Output in one part: a multiple of three, so that parts in base64 follow one another without padding. */
const PART_BYTES = 3 * 16 * 1024;
/** Output encoded in one turn of the event loop; it takes 1 to 2 ms. */
const TURN_BYTES = 8 * PART_BYTES;

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

/**
 * JSON of a page in parts: `{"bytes", "next_cursor", "truncated_before"?, …fields}`, the bytes as text or in base64.
 * Several times as fast as `JSON.stringify` of the whole, whose result has to be measured and converted once more.
 */
export function pageJson(page: LogPage, { fields, ...options }: PageJsonOptions): PageJson {
  const { bytes, nextCursor } = pageBytes(page, options);
  const { truncatedBefore } = page;
  const rest = {
    next_cursor: nextCursor,
    ...(truncatedBefore !== undefined && { truncated_before: truncatedBefore }),
    ...fields,
  };
  async function* parts(): AsyncGenerator<Buffer> {
    yield Buffer.from('{"bytes":"');
    const encode = options.isText ? textEncoder(bytes) : toBase64;
    for (let at = 0; at < bytes.length;) {
      const end = at + PART_BYTES;
      yield encode(bytes.subarray(at, end));
      at = end;
      if (at % TURN_BYTES === 0) await setImmediate();
    }
    releaseMemory(bytes);
    page.release();
    yield Buffer.from(`",${JSON.stringify(rest).slice(1)}`);
  }
  return { json: parts(), nextCursor, isSmall: bytes.length <= PART_BYTES };
}

/** Body of an answer with the JSON of a page. */
export async function pageBody({ json, isSmall }: PageJson): Promise<Buffer | Readable> {
  return isSmall ? Buffer.concat(await Array.fromAsync(json)) : Readable.from(json, { objectMode: false });
}

function toBase64(bytes: Buffer): Buffer {
  return Buffer.from(bytes.toString("base64"), "latin1");
}

/** Encodes the parts of a text, in their order, as the inside of a JSON string. */
function textEncoder(text: Buffer): (part: Buffer) => Buffer {
  // JSON escapes ASCII alone, so valid UTF-8 passes through the short strings of Latin-1.
  if (isUtf8(text)) return (part) => inside(JSON.stringify(part.toString("latin1")), "latin1");
  const decoder = new StringDecoder("utf8");
  let left = text.length;
  return (part) => {
    left -= part.length;
    return inside(JSON.stringify(decoder.write(part) + (left === 0 ? decoder.end() : "")), "utf8");
  };
}

function inside(quoted: string, encoding: BufferEncoding): Buffer {
  return Buffer.from(quoted, encoding).subarray(1, -1);
}
