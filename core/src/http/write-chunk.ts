import type { ServerResponse } from "node:http";

/**
 * Writes to a response at the pace of its client: resolves when there is room for more, or the client is gone, which
 * `destroyed` tells. Waits for the close too: a response whose socket is destroyed never says that it drained.
 */
export async function writeChunk(response: ServerResponse, chunk: Uint8Array): Promise<void> {
  if (response.destroyed || response.write(chunk)) return;
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
