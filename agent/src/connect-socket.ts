import { once } from "node:events";
import { connect, type Socket } from "node:net";

/** Connects to a UNIX socket. @throws Error when no process listens there, or the signal's reason. */
export async function connectSocket(path: string, signal?: AbortSignal): Promise<Socket> {
  signal?.throwIfAborted();
  const socket = connect(path);
  try {
    await once(socket, "connect", signal && { signal });
    return socket;
  } catch (error) {
    socket.destroy();
    throw error;
  }
}
