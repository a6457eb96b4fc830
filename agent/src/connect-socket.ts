import { once } from "node:events";
import { connect, type Socket } from "node:net";

/**
 * One buffer for what is read from all sockets, because each piece is used up in its event. New memory for each piece
 * costs more than reading it.
 */
const READ_BUFFER = Buffer.allocUnsafeSlow(256 * 1024);

/** True of a piece that is overwritten after its event. */
export function isBorrowed(piece: Buffer): boolean {
  return piece.buffer === READ_BUFFER.buffer;
}

/**
 * Connects to a UNIX socket, which is paused. Its pieces of data are valid during their events alone.
 * @throws Error when no process listens there, or the signal's reason.
 */
export async function connectSocket(path: string, signal?: AbortSignal): Promise<Socket> {
  signal?.throwIfAborted();
  const socket: Socket = connect({
    path,
    onread: {
      buffer: READ_BUFFER,
      callback: (count, buffer) => {
        socket.emit("data", buffer.subarray(0, count));
        return true;
      },
    },
  });
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
