import type { ServerResponse } from "node:http";

/**
 * Writes parts to a response, uncopied, at the pace of its client: resolves when there is room for more, or the client
 * is gone, which `destroyed` shows. Waits for the close as well: a response whose socket is destroyed emits no "drain".
 */
export async function writeChunk(response: ServerResponse, parts: readonly Uint8Array[]): Promise<void> {
  if (response.destroyed || writeTogether(response, parts)) return;
  await new Promise<void>((resolve) => {
    const go = (): void => {
      response.off("drain", go);
      response.off("close", go);
      resolve();
    };
    response.on("drain", go);
    response.on("close", go);
  });
}

/** @returns false when the writer has to wait for "drain". */
function writeTogether(response: ServerResponse, parts: readonly Uint8Array[]): boolean {
  const [first] = parts;
  if (first !== undefined && parts.length === 1) return response.write(first);
  const { socket } = response;
  // Corked for one system call: uncorking a response uncorks its socket before it flushes.
  socket?.cork();
  response.cork();
  for (const part of parts) response.write(part);
  response.uncork();
  socket?.uncork();
  return !response.writableNeedDrain;
}
