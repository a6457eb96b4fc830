import { randomUUID } from "node:crypto";
import { createReadStream } from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { type LiveSandbox, resolveSandboxPath, SandboxError } from "@coppice/core";
import { repack, type Repacked } from "./repack.js";
import { checkExit, outputOf, startTar } from "./tar-process.js";

export interface ImportOptions {
  readonly destination: string;
  readonly tarball: AsyncIterable<Uint8Array>;
  /** Directory on the host in which the checked archive waits. */
  readonly spool: string;
  readonly maxBytes: number;
  readonly maxEntries: number;
}

/**
 * Unpacks an archive in a sandbox: nothing of it before all of it was checked.
 * @throws SandboxError as `repack`; failed_precondition when tar(1) fails, resource_exhausted without room.
 */
export async function importArchive(
  sandbox: LiveSandbox,
  { destination, tarball, spool, maxBytes, maxEntries }: ImportOptions,
): Promise<Repacked & { readonly dest: string }> {
  const user = await sandbox.runtime.user();
  const dest = resolveSandboxPath(destination, user);
  await mkdir(spool, { recursive: true, mode: 0o700 });
  const path = join(spool, `${randomUUID()}.tar`);
  try {
    const repacked = await repack(tarball, { path, maxBytes, maxEntries });
    await sandbox.runtime.files.makeDir(dest).catch((error: unknown) => {
      if (!(error instanceof SandboxError) || error.code !== "already_exists") throw error;
    });
    await unpack(sandbox, path, dest);
    return { ...repacked, dest };
  } finally {
    await rm(path, { force: true });
  }
}

async function unpack(sandbox: LiveSandbox, path: string, dest: string): Promise<void> {
  const process = await startTar(sandbox, { args: ["-x", "-o", "-f", "-"], cwd: dest, input: "pipe" });
  const told = { text: "" };
  const read = (async () => {
    for await (const _ of outputOf(process, told));
  })();
  try {
    for await (const chunk of createReadStream(path, { highWaterMark: 256 * 1024 })) {
      await process.write(chunk as Uint8Array);
    }
    await process.closeInput();
  } catch {
    // It has ended: its exit says why.
  }
  await read;
  await checkExit(process, { told: told.text, allowed: [0] });
}
