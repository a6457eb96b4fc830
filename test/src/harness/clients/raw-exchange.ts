import { connect } from "node:net";

const QUIET_MS = 5_000;

/**
 * Writes bytes to a server's socket, whatever they are, and resolves with everything that comes back
 * until the server closes. With `hangUp` the client closes its side right after the last byte.
 * @throws Error when the server neither answers nor closes for 5 seconds.
 */
export async function rawExchange(
  url: string,
  bytes: string | Uint8Array,
  { hangUp = false } = {},
): Promise<string> {
  const { hostname, port } = new URL(url);
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const socket = connect(Number(port), hostname);
  const received: Buffer[] = [];
  const finish = (): void => resolve(Buffer.concat(received).toString("latin1"));
  socket.setTimeout(QUIET_MS, () => {
    socket.destroy();
    if (received.length > 0) finish();
    else reject(new Error("the server neither answers nor closes"));
  });
  socket.on("data", (chunk) => received.push(chunk));
  // A reset after an answer, or instead of one, is a way of closing.
  socket.on("error", () => undefined);
  socket.on("close", finish);
  socket.write(bytes);
  if (hangUp) socket.end();
  try {
    return await promise;
  } finally {
    socket.destroy();
  }
}
