import { posix } from "node:path";
import { type LiveSandbox, resolveSandboxPath, SandboxError } from "@coppice/core";
import { checkExit, outputOf, startTar } from "./tar-process.js";

export interface ExportOptions {
  /** Directory that the paths start from, and that their names in the archive are relative to. */
  readonly sourceDirectory: string;
  readonly paths: readonly string[];
  /** Aborted when the client leaves. */
  readonly signal: AbortSignal;
}

/**
 * Files of a sandbox as an archive, read at the consumer's pace.
 * @throws SandboxError invalid_argument (a path that begins with `-` or has `..` in it), not_found for a missing one,
 * before the archive begins; failed_precondition when tar(1) fails, also within it.
 */
export async function exportArchive(
  sandbox: LiveSandbox,
  { sourceDirectory, paths, signal }: ExportOptions,
): Promise<AsyncGenerator<Uint8Array>> {
  const directory = resolveSandboxPath(sourceDirectory, await sandbox.runtime.user());
  for (const path of paths) {
    const isPlain =
      path !== "" && !path.startsWith("-") && !path.includes("\0") && !path.split("/").includes("..");
    if (!isPlain) throw new SandboxError("path_invalid", `path ${JSON.stringify(path)} cannot be exported`);
    await sandbox.runtime.files.stat(posix.resolve(directory, path));
  }
  const info = await sandbox.runtime.files.stat(directory);
  if (info.kind !== "directory") throw new SandboxError("path_is_file", `${directory} is not a directory`);
  // FreeBSD's tar takes `@name` for an archive.
  const named = paths.map((path) => (path.startsWith("@") ? `./${path}` : path));
  const process = await startTar(sandbox, {
    args: ["-c", "-f", "-", ...named],
    cwd: directory,
    input: "none",
    signal,
  });
  const told = { text: "" };
  const output = outputOf(process, told, signal);
  const first = await output.next();
  if (first.done === true) await checkExit(process, { told: told.text, allowed: [0] });
  return (async function* () {
    try {
      if (first.done !== true) yield first.value;
      yield* output;
      await checkExit(process, { told: told.text, allowed: [0, 1] });
    } finally {
      // The client may have left.
      await process.kill("SIGKILL", "group").catch(() => undefined);
    }
  })();
}
