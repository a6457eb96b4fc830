import { Readable } from "node:stream";
import { releaseMemory } from "@coppice/core";
import { bytesJson, PART_BYTES } from "./bytes-json.js";
import type { OutputPage } from "./commands.js";
import { pageBytes, type PageBytesOptions } from "./page-bytes.js";

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
