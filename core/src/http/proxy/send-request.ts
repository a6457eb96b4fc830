import type { IncomingMessage } from "node:http";
import { hasBody } from "../messages/has-body.js";
import { bodyOf } from "../messages/json-body.js";
import type { HttpConnection, HttpExchange } from "./http-connection.js";

/**
 * Sends the request of a client as an exchange that has begun. Its body follows as it comes, or from memory if it was
 * read. The other side may answer before it reads, and a client may wait for that before it writes.
 * @param head of the request; it tells of the body what the client's did.
 */
export function sendRequest(
  message: IncomingMessage,
  head: string,
  { connection, exchange }: { readonly connection: HttpConnection; readonly exchange: HttpExchange },
): void {
  const { stream } = connection;
  const isChunked = message.headers["transfer-encoding"] !== undefined;
  const write = (bytes: Buffer): boolean => {
    if (isChunked) stream.write(`${bytes.length.toString(16)}\r\n`, "latin1");
    const takesMore = stream.write(bytes);
    if (isChunked) stream.write("\r\n", "latin1");
    return takesMore;
  };
  const end = (): void => {
    connection.sent();
    if (isChunked) stream.write("0\r\n\r\n", "latin1");
  };
  if (!hasBody(message)) {
    connection.sent();
    stream.write(head, "latin1");
    return;
  }
  // Head and beginning of the body leave in one write.
  stream.cork();
  stream.write(head, "latin1");
  const body = bodyOf(message);
  if (body !== undefined) {
    if (body.length > 0) write(body);
    end();
  } else {
    message.on("data", (bytes: Buffer) => {
      if (connection.serves(exchange) && !write(bytes)) message.pause();
    });
    message.once("end", () => {
      if (connection.serves(exchange)) end();
    });
  }
  process.nextTick(() => stream.uncork());
}
