import type { SpoolFile } from "@coppice/core";
import { readArchive } from "./read-archive.js";
import { SafeEntries } from "./safe-entries.js";
import { BLOCK_BYTES, broken, encodeHeader, paddingOf } from "./tar-blocks.js";

export interface RepackOptions {
  /** Written to. */
  readonly file: SpoolFile;
  readonly maxBytes: number;
  readonly maxEntries: number;
}

export interface Repacked {
  /** Files and links. */
  readonly imported: number;
  /** Their contents. */
  readonly bytes: number;
}

/**
 * Checks an archive while it arrives, and writes it anew: what unpacks it later reads the headers that were checked, and
 * not others that it would find in the same bytes.
 * @throws SandboxError invalid_argument for an archive that is broken, too large, or leaves its directory; the errors of
 * `source`.
 */
export async function repack(source: AsyncIterable<Uint8Array>, options: RepackOptions): Promise<Repacked> {
  const { file, maxBytes, maxEntries } = options;
  const entries = new SafeEntries(maxEntries);
  let imported = 0;
  let bytes = 0;
  for await (const { header, contents } of readArchive(limited(source, maxBytes))) {
    entries.check(header);
    await file.write(encodeHeader(header));
    for await (const chunk of contents) {
      bytes += chunk.length;
      await file.write(chunk);
    }
    await file.write(Buffer.alloc(paddingOf(header.size)));
    if (header.type !== "directory") imported += 1;
  }
  await file.write(Buffer.alloc(2 * BLOCK_BYTES));
  return { imported, bytes };
}

async function* limited(source: AsyncIterable<Uint8Array>, maxBytes: number): AsyncGenerator<Uint8Array> {
  let bytes = 0;
  for await (const chunk of source) {
    bytes += chunk.length;
    if (bytes > maxBytes) throw broken(`it is larger than ${maxBytes} bytes`);
    yield chunk;
  }
  if (bytes === 0) throw broken("it is empty");
}
