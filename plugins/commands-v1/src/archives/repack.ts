import { once } from "node:events";
import { open } from "node:fs/promises";
import { pipeline } from "node:stream/promises";
import { messageOf, SandboxError } from "@coppice/core";
import { extract as extractor, type Headers, pack as packer } from "tar-stream";
import { SafeEntries } from "./safe-entries.js";

export interface RepackOptions {
  /** File to write. */
  readonly path: string;
  readonly maxBytes: number;
  readonly maxEntries: number;
}

export interface Repacked {
  /** Files and links. */
  readonly imported: number;
  /** Their contents. */
  readonly bytes: number;
}

/** Most bytes of extended headers before an entry: the parser keeps them in memory. */
const MAX_HEADER_BYTES = 2 * 2 ** 20;

/**
 * Checks an archive while it arrives, and writes it anew: what unpacks it later reads the headers that were checked, and
 * not others that it would find in the same bytes.
 * @throws SandboxError invalid_argument for an archive that is broken, too large, or leaves its directory; the errors of
 * `source`.
 */
export async function repack(source: AsyncIterable<Uint8Array>, options: RepackOptions): Promise<Repacked> {
  const { path, maxBytes, maxEntries } = options;
  // Opened here: a stream that opens its file later would make it again after its removal.
  const file = await open(path, "wx", 0o600);
  const entries = new SafeEntries(maxEntries);
  const over = new AbortController();
  const extract = extractor();
  const pack = packer();
  let sourceFailure: { readonly error: unknown } | undefined;
  let fedBytes = 0;
  let contentBytes = 0;
  let imported = 0;
  /** Bytes before the current entry that were no content. */
  let headersUntilNow = 0;

  const feed = async (): Promise<void> => {
    try {
      for await (const chunk of source) {
        fedBytes += chunk.length;
        if (fedBytes > maxBytes) throw invalid(`it is larger than ${maxBytes} bytes`);
        if (fedBytes - contentBytes - headersUntilNow > MAX_HEADER_BYTES + chunk.length) {
          throw invalid("a header is too long");
        }
        if (!extract.write(Buffer.from(chunk))) await once(extract, "drain", over);
      }
      if (fedBytes === 0) throw invalid("it is empty");
      extract.end();
    } catch (error) {
      if (over.signal.aborted) return;
      sourceFailure = { error };
      extract.destroy(error as Error);
    }
  };
  const written = pipeline(pack, file.createWriteStream());
  // Awaited below; a failure of the parser comes first.
  written.catch(() => undefined);
  void feed();
  try {
    for await (const entry of extract) {
      entries.check(entry.header);
      headersUntilNow = fedBytes - contentBytes;
      const out = pack.entry(canonical(entry.header));
      for await (const chunk of entry as AsyncIterable<Buffer>) {
        contentBytes += chunk.length;
        headersUntilNow = fedBytes - contentBytes;
        if (!out.write(chunk)) await Promise.race([once(out, "drain"), written]);
      }
      out.end();
      if (entry.header.type !== "directory") imported += 1;
    }
    pack.finalize();
    await written;
    return { imported, bytes: contentBytes };
  } catch (error) {
    if (sourceFailure !== undefined) throw sourceFailure.error;
    if (error instanceof SandboxError) throw error;
    if ((error as { readonly code?: string }).code === "ENOSPC") {
      throw new SandboxError("store_unavailable", "the server has no room for the archive", { cause: error });
    }
    throw invalid(messageOf(error));
  } finally {
    over.abort();
    extract.destroy();
    pack.destroy();
  }
}

/** The header without owners and other attributes. */
function canonical({ name, type, linkname, mode, mtime, size }: Headers): Headers {
  return {
    name,
    type: type === "contiguous-file" ? "file" : type,
    mode: (mode ?? 0o644) & 0o777,
    ...(mtime !== undefined && { mtime }),
    ...(type === "symlink" || type === "link" ? { linkname: linkname ?? "" } : { size: size ?? 0 }),
  };
}

function invalid(problem: string): SandboxError {
  return new SandboxError("archive_invalid", `the archive is refused: ${problem}`);
}
