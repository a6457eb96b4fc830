import type { Duplex } from "node:stream";

const LINGER_MS = 1000;

/** Destroys a socket after a moment in which the peer can read the last bytes. The peer may never close it. */
export function destroySoon(socket: Duplex): void {
  const timer = setTimeout(() => socket.destroy(), LINGER_MS).unref();
  socket.once("close", () => clearTimeout(timer));
}
