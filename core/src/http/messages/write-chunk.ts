import type { ServerResponse } from "node:http";

/**
 * Writes a chunk to a response, uncopied, at the pace of its client: resolves when there is room for more, or the client
 * is gone, which `destroyed` shows. Waits for the close as well: a response whose socket is destroyed emits no "drain".
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
