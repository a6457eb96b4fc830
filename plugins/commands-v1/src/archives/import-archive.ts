import { type LiveSandbox, resolveSandboxPath, SandboxError, type Spool, unlessAborted } from "@coppice/core";
import { checkExit, outputOf, startTar } from "./tar-process.js";
import { readArchive } from "./read-archive.js";
import { SafeEntries } from "./safe-entries.js";
import { BLOCK_BYTES, broken, encodeHeader, paddingOf } from "./tar-blocks.js";

type SpoolFile = Awaited<ReturnType<Spool["open"]>>;

export interface ImportOptions {
  readonly destination: string;
  readonly tarball: AsyncIterable<Uint8Array>;
  /** Where the checked archive waits. */
  readonly spool: Spool;
  /** Whose share of the spool it takes. */
  readonly tenant: string;
  readonly maxBytes: number;
  readonly maxEntries: number;
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

/**
 * Unpacks an archive in a sandbox: nothing of it before all of it was checked.
 * @throws SandboxError as `repack`; failed_precondition when tar(1) fails, resource_exhausted without room; the
 * signal's reason when it aborts.
 */
export async function importArchive(
  sandbox: LiveSandbox,
  { destination, tarball, spool, tenant, maxBytes, maxEntries, signal }: ImportOptions,
): Promise<Repacked & { readonly dest: string }> {
  const user = await sandbox.runtime.user();
  const dest = resolveSandboxPath(destination, user);
  await using file = await spool.open(tenant);
  const repacked = await repack(tarball, { file, maxBytes, maxEntries });
  await sandbox.runtime.files.makeDir(dest).catch((error: unknown) => {
    if (!(error instanceof SandboxError) || error.code !== "already_exists") throw error;
  });
  await unpack(sandbox, file, { dest, signal });
  return { ...repacked, dest };
}

async function unpack(
  sandbox: LiveSandbox,
  file: SpoolFile,
  { dest, signal }: { readonly dest: string; readonly signal: AbortSignal },
): Promise<void> {
  const process = await startTar(sandbox, {
    args: ["-x", "-o", "-f", "-"],
    cwd: dest,
    input: "pipe",
    signal,
  });
  const told = { text: "" };
  const read = (async () => {
    for await (const _ of outputOf(process, told, signal));
  })();
  // It is awaited later, or not at all when the client leaves.
  read.catch(() => undefined);
  try {
    for await (const piece of file.pieces()) {
      // Copied: `write` promises that the bytes were accepted, not that they were read.
      const chunk = Buffer.from(piece);
      await unlessAborted(signal, () => process.write(chunk));
    }
    await process.closeInput();
  } catch {
    // It has ended: its exit says why.
  }
  await read;
  await checkExit(process, { told: told.text, allowed: [0] });
}

interface RepackOptions {
  /** Written to. */
  readonly file: SpoolFile;
  readonly maxBytes: number;
  readonly maxEntries: number;
}

interface Repacked {
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
async function repack(source: AsyncIterable<Uint8Array>, options: RepackOptions): Promise<Repacked> {
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
