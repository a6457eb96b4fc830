import { relative } from "node:path";
import { watch } from "chokidar";
import { SandboxError, messageOf } from "@coppice/core";
import type { EventBuffer } from "./event-buffer.js";
import { REASONS } from "../reasons.js";

/**
 * Watches a directory on the host with chokidar, for backends that cannot watch by themselves.
 *
 * Fewer events than with inotify: a move is "remove" and "create", a change of mode is no event, changes of a file
 * in quick succession are one, and events come some milliseconds after the change.
 * @returns ends the watch.
 * @throws SandboxError resource_exhausted (more entries than `maxEntries`, no watches left on this host), internal.
 */
export async function startHostWatch(options: {
  /** Absolute, inside the sandbox. */
  readonly path: string;
  /** The same directory on the host. */
  readonly hostPath: string;
  readonly recursive: boolean;
  readonly buffer: EventBuffer;
  /** Most entries below it. */
  readonly maxEntries: number;
}): Promise<() => Promise<void>> {
  const { path: directory, hostPath, recursive, buffer, maxEntries } = options;
  const ready = Promise.withResolvers<void>();
  // Until then chokidar reports the entries that existed before.
  let isReady = false;
  let entries = 0;
  const fail = (error: SandboxError): void => {
    buffer.fail(error);
    ready.reject(error);
    void watcher.close();
  };
  const watcher = watch(hostPath, {
    followSymlinks: false,
    alwaysStat: true,
    atomic: false,
    ...(!recursive && { depth: 0 }),
  });
  watcher.on("ready", () => {
    isReady = true;
    ready.resolve();
  });
  watcher.on("error", (error) => fail(watchFailure(error)));
  watcher.on("all", (event, path, stats) => {
    const name = relative(hostPath, path);
    if (name === "") return;
    if (event === "add" || event === "addDir") entries++;
    else if (event === "unlink" || event === "unlinkDir") entries--;
    if (entries > maxEntries) {
      const message = `more than ${maxEntries} entries to watch below ${directory}`;
      fail(new SandboxError("watch_limit_reached", message));
    }
    if (!isReady) return;
    if (event === "add" || event === "addDir") buffer.push({ name, type: "create" });
    if (event === "change" || (event === "add" && stats?.isFile() && stats.size > 0))
      buffer.push({ name, type: "write" });
    if (event === "unlink" || event === "unlinkDir") buffer.push({ name, type: "remove" });
  });
  try {
    await ready.promise;
  } catch (error) {
    await watcher.close();
    throw error;
  }
  return () => watcher.close();
}

function watchFailure(error: unknown): SandboxError {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return code === "ENOSPC" || code === "EMFILE"
    ? new SandboxError("watch_limit_reached", "this host has no file watches left", { cause: error })
    : new SandboxError(REASONS.watch_failed, `the watch failed: ${messageOf(error)}`, { cause: error });
}
