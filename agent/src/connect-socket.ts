import { once } from "node:events";
import { connect, type Socket } from "node:net";
import type { Duplex } from "node:stream";

/**
 * One buffer for what is read from all sockets, because each piece is used up in its event. New memory for each piece
 * costs more than reading it.
 */
const READ_BUFFER = Buffer.allocUnsafeSlow(256 * 1024);

/** Where the next bytes of sockets go. */
const destinations = new WeakMap<Duplex, { next: () => Buffer | undefined }>();

/**
 * Connects to a UNIX socket, which is paused. Its pieces of data are valid during their events alone.
 * @throws Error when no process listens there, or the signal's reason.
 */
export async function connectSocket(path: string, signal?: AbortSignal): Promise<Socket> {
  signal?.throwIfAborted();
  const destination = { next: (): Buffer | undefined => undefined };
  const socket: Socket = connect({
    path,
    onread: {
      buffer: () => destination.next() ?? READ_BUFFER,
      callback: (count, buffer) => {
        socket.emit("data", buffer.subarray(0, count));
        return true;
      },
    },
  });
  destinations.set(socket, destination);
  // Otherwise data could come before there is a listener for it.
  socket.pause();
  try {
    await once(socket, "connect", signal && { signal });
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

/**
 * Has a socket of `connectSocket` read straight into the reader's memory.
 * @param next asked after each event; undefined for a buffer of all sockets.
 * @returns false for other streams, whose pieces are their reader's.
 */
export function readInto(stream: Duplex, next: () => Buffer | undefined): boolean {
  const destination = destinations.get(stream);
  if (destination !== undefined) destination.next = next;
  return destination !== undefined;
}
