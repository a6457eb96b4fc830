import type { ServerResponse } from "node:http";
import type { UniversalServerResponse } from "@connectrpc/connect/protocol";

/**
 * Writes an RPC's answer at the pace of its client. When the client is gone, the producer learns it by `return`.
 * Replaces connect-node's own function: when a socket is destroyed but not yet closed, that one waits for room forever
 * and keeps the timer of the RPC's deadline.
 */
export async function sendAnswer(
  { status, header, body }: UniversalServerResponse,
  response: ServerResponse,
): Promise<void> {
  if (header !== undefined) response.setHeaders(header);
  response.writeHead(status);
  for await (const chunk of body ?? []) {
    await writeChunk(response, chunk);
    if (response.destroyed) return;
  }
  response.end();
}

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
