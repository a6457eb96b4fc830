import {
  type LiveSandbox,
  resolveSandboxPath,
  SandboxError,
  type Spool,
  type SpoolFile,
  unlessAborted,
} from "@coppice/core";
import { repack, type Repacked } from "./repack.js";
import { checkExit, outputOf, startTar } from "./tar-process.js";

export interface ImportOptions {
  readonly destination: string;
  readonly tarball: AsyncIterable<Uint8Array>;
  /** Where the checked archive waits. */
  readonly spool: Spool;
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
  { destination, tarball, spool, maxBytes, maxEntries, signal }: ImportOptions,
): Promise<Repacked & { readonly dest: string }> {
  const user = await sandbox.runtime.user();
  const dest = resolveSandboxPath(destination, user);
  await using file = await spool.open();
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
