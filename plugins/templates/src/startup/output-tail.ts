import type { StartedCommand } from "@coppice/plugin-commands";

const KEPT_BYTES = 2048;

/**
 * Keeps the end of a command's output until the signal aborts. Call it in the turn of the event loop in which the
 * command was started. @returns gives the end of its stderr, or of stdout where that is empty.
 */
export function outputTail(command: StartedCommand, signal: AbortSignal): () => string {
  const kept = { stderr: Buffer.alloc(0), stdout: Buffer.alloc(0), terminal: Buffer.alloc(0) };
  void (async () => {
    for await (const { stream, data } of command.subscribe(signal))
      kept[stream] = Buffer.concat([kept[stream], data]).subarray(-KEPT_BYTES);
    // Its end is seen elsewhere.
  })().catch(() => {});
  return () => (kept.stderr.length > 0 ? kept.stderr : kept.stdout).toString("utf8").trim();
}
