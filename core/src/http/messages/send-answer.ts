import type { ServerResponse } from "node:http";
import type { UniversalServerResponse } from "@connectrpc/connect/protocol";
import { writeChunk } from "./write-chunk.js";

/**
 * Writes what an RPC answers, at the pace of its client. When that is gone, whoever makes the answer is told by `return`.
 * In the place of connect-node's own, which waits for room for ever, and with it the timer of the RPC's deadline, when
 * the socket is destroyed and has not closed yet.
 */
export async function sendAnswer(
  { status, header, body }: UniversalServerResponse,
  response: ServerResponse,
): Promise<void> {
  if (header !== undefined) response.setHeaders(header);
  response.writeHead(status);
  for await (const chunk of body ?? []) {
    await writeChunk(response, [chunk]);
    if (response.destroyed) return;
  }
  response.end();
}
