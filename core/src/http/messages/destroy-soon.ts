import type { Duplex } from "node:stream";

const LINGER_MS = 1000;

/** Gives the other side a moment to take what was said last. It may never hang up itself. */
export function destroySoon(socket: Duplex): void {
  const timer = setTimeout(() => socket.destroy(), LINGER_MS).unref();
  socket.once("close", () => clearTimeout(timer));
}
