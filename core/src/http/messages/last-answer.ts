import { type IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { HttpError } from "./http-error.js";

/**
 * A response on the socket of a refused upgrade. The socket is closed after it.
 * @param head headers are names and values in turn.
 */
export function lastAnswer(
  message: IncomingMessage,
  socket: Duplex,
  { headers, status }: { readonly headers: readonly string[]; readonly status: number },
): ServerResponse {
  const response = new ServerResponse(message);
  response.shouldKeepAlive = false;
  // The client may leave in the middle of it.
  response.on("error", () => undefined);
  response.assignSocket(socket as Socket);
  try {
    response.writeHead(status, [...headers]);
  } catch (error) {
    response.detachSocket(socket as Socket);
    throw error;
  }
  response.once("finish", () => {
    socket.end();
    destroySoon(socket);
  });
  return response;
}

/** Answers an upgrade with an error. What another server refuses has the same form, so that it does not tell where a sandbox is. */
export function refuseUpgrade(
  message: IncomingMessage,
  socket: Duplex,
  { status, body, retryAfterSeconds }: HttpError,
): void {
  const text = typeof body === "string" ? body : JSON.stringify(body);
  const headers = ["content-type", typeof body === "string" ? "text/plain" : "application/json"];
  if (retryAfterSeconds !== undefined) headers.push("retry-after", String(retryAfterSeconds));
  headers.push("content-length", String(Buffer.byteLength(text)));
  lastAnswer(message, socket, { status, headers }).end(text);
  // A socket with unread bytes is never closed, even when its client is gone.
  socket.resume();
}

const LINGER_MS = 1000;

/** Destroys a socket after a moment in which the peer can read the last bytes. The peer may never close it. */
export function destroySoon(socket: Duplex): void {
  const timer = setTimeout(() => socket.destroy(), LINGER_MS).unref();
  socket.once("close", () => clearTimeout(timer));
}
