import { CloseCode, type ClientSocket } from "./client-socket.js";
import { ReplayBuffer } from "./replay-buffer.js";
import type { SharedFrame } from "./server-frame.js";

/** One client of a kernel, across the connections it loses and makes anew under the same session id. */
export class ClientSession {
  readonly id: string;
  /** True while the kernel waits for a line that this client was asked for. */
  isAskedForInput = false;
  /** Requests without an end, and what they weigh. */
  pendingRequests = 0;
  pendingBytes = 0;
  /** Takes back the forgetting of a lost client. */
  cancelForget: () => void = () => undefined;
  readonly #replay: ReplayBuffer;
  #socket: ClientSocket | undefined;

  constructor(id: string, maxReplayBytes: number) {
    this.id = id;
    this.#replay = new ReplayBuffer(maxReplayBytes);
  }

  get isConnected(): boolean {
    return this.#socket !== undefined;
  }

  /** Serves a new connection, first with what the client missed. An older one is closed. */
  connect(socket: ClientSocket): void {
    const before = this.#socket;
    if (before !== undefined) {
      this.disconnect(before);
      before.close(CloseCode.Normal, "replaced by a newer connection of the same session");
    }
    this.#socket = socket;
    for (const frame of this.#replay.take()) socket.send(frame);
  }

  /** False for a connection that was replaced meanwhile. From here on messages are kept. */
  disconnect(socket: ClientSocket): boolean {
    if (this.#socket !== socket) return false;
    this.#socket = undefined;
    for (const frame of socket.unsent()) this.#replay.add(frame);
    return true;
  }

  /**
   * Sends a message, or keeps it for a lost client.
   * @param isOwn it answers a request of this client.
   * @returns a promise while the kernel has to wait for the client; "lost" when nothing more can be kept.
   */
  deliver(frame: SharedFrame, isOwn: boolean): Promise<void> | "lost" | undefined {
    const socket = this.#socket;
    if (socket === undefined) return this.#replay.add(frame) ? undefined : "lost";
    socket.send(frame);
    return socket.caughtUp(isOwn);
  }

  close(code: number, reason: string): void {
    this.#socket?.close(code, reason);
  }
}
