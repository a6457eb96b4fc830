import { type LiveSandbox, SandboxError } from "@coppice/core";
import type { Process } from "@coppice/core/backend";

/** Marks tar(1) for a later server, which ends it. */
export const TAR_LABEL = "commands-v1:tar";

const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const MAX_ERROR_BYTES = 1_000;
const NOT_FOUND = 127;

export interface StartTar {
  readonly args: readonly string[];
  /** Directory of the sandbox that names are relative to. */
  readonly cwd: string;
  readonly input: "pipe" | "none";
}

/** Starts the sandbox's tar(1) as its default user: links and permissions are those of the sandbox. */
export function startTar(sandbox: LiveSandbox, command: StartTar): Promise<Process> {
  const env = { PATH, LC_ALL: "C" };
  return sandbox.runtime.spawn({ path: "tar", env, label: TAR_LABEL, ...command });
}

/** The standard output of tar(1). Its other output is kept for an error text. */
export async function* outputOf(process: Process, told: { text: string }): AsyncGenerator<Uint8Array> {
  for await (const { stream, data } of process.output) {
    if (stream === "stdout") yield data;
    else if (told.text.length < MAX_ERROR_BYTES) told.text += Buffer.from(data).toString();
  }
}

/** Checks how tar(1) ended. GNU tar exits with 1 for a file that changed while it was read. */
export async function checkExit(
  process: Process,
  { told, allowed }: { readonly told: string; readonly allowed: readonly number[] },
): Promise<void> {
  const { code } = await process.exit;
  if (code !== undefined && allowed.includes(code)) return;
  if (code === NOT_FOUND) throw new SandboxError("archive_failed", "the sandbox has no tar");
  if (/no space left|disk quota/i.test(told))
    throw new SandboxError("disk_full", "not enough disk space available");
  throw new SandboxError("archive_failed", `tar failed: ${told.slice(0, MAX_ERROR_BYTES).trim()}`);
}
