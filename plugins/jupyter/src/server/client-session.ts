import { CloseCode, type HeldMemory } from "@coppice/core";
import type { ClientSocket } from "./client-socket.js";
import { ReplayBuffer } from "./replay-buffer.js";
import type { SharedFrame } from "./server-frame.js";

/** One client of a kernel, across reconnections under the same session id. */
export class ClientSession {
  readonly id: string;
  /** True while the kernel waits for this client's input. */
  isAskedForInput = false;
  pendingRequests = 0;
  pendingBytes = 0;
  /** Cancels the removal of a disconnected client. */
  cancelForget: () => void = () => undefined;
  readonly #replay: ReplayBuffer;
  #socket: ClientSocket | undefined;

  constructor(id: string, maxReplayBytes: number, place: ReturnType<HeldMemory["place"]>) {
    this.id = id;
    this.#replay = new ReplayBuffer(maxReplayBytes, place);
  }

  get isConnected(): boolean {
    return this.#socket !== undefined;
  }

  /** Attaches a new connection and sends the missed messages first. An older connection is closed. */
  connect(socket: ClientSocket): void {
    const before = this.#socket;
    if (before !== undefined) {
      this.disconnect(before);
      before.close(CloseCode.Normal, "replaced by a newer connection of the same session");
    }
    this.#socket = socket;
    for (const frame of this.#replay.take()) socket.send(frame);
  }

  /** Keeps messages from here on. False for a connection that was replaced meanwhile. */
  disconnect(socket: ClientSocket): boolean {
    if (this.#socket !== socket) return false;
    this.#socket = undefined;
    for (const frame of socket.unsent()) this.#replay.add(frame);
    return true;
  }

  /**
   * Sends a message, or keeps it for a disconnected client.
   * @param isOwn true for an answer to this client.
   * @returns a promise while the kernel has to wait for the client; "lost" when nothing more can be kept.
   */
  deliver(frame: SharedFrame, isOwn: boolean): Promise<void> | "lost" | undefined {
    const socket = this.#socket;
    if (socket === undefined) return this.#replay.add(frame) ? undefined : "lost";
    socket.send(frame);
    return socket.caughtUp(isOwn);
  }

  /** Drops what it has missed. */
  drop(): void {
    this.#replay.take();
  }

  close(code: number, reason: string): void {
    this.#socket?.close(code, reason);
  }
}
