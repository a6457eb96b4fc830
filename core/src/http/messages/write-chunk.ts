import type { ServerResponse } from "node:http";

/**
 * Writes to a response at the pace of its client, the parts as they are: resolves when there is room for more, or the
 * client is gone, which `destroyed` tells. Waits for the close too: a response whose socket is destroyed never says that it drained.
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

/** @returns false when whoever writes is to wait for "drain". */
function writeTogether(response: ServerResponse, parts: readonly Uint8Array[]): boolean {
  const [first] = parts;
  if (first !== undefined && parts.length === 1) return response.write(first);
  const { socket } = response;
  // For one system call: a response that is uncorked has uncorked its socket before it flushes.
  socket?.cork();
  response.cork();
  for (const part of parts) response.write(part);
  response.uncork();
  socket?.uncork();
  return !response.writableNeedDrain;
}
