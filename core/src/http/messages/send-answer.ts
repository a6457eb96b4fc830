import type { ServerResponse } from "node:http";
import type { UniversalServerResponse } from "@connectrpc/connect/protocol";
import { writeChunk } from "./write-chunk.js";

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
