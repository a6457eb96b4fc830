import { Semaphore, type WebSocket } from "@coppice/core";

/** Sends messages by a WebSocket, one after the other, each when the client has taken the one before. */
export class SocketWriter {
  readonly #socket: WebSocket;
  readonly #turns = new Semaphore();

  constructor(socket: WebSocket) {
    this.#socket = socket;
  }

  /** Resolves when the message was handed on, or the connection is lost. */
  send(message: Readonly<Record<string, unknown>>): Promise<void> {
    return this.sendParts([Buffer.from(JSON.stringify(message))]);
  }

  /** As `send`, for a message in parts. When the parts fail, so does the connection. @throws what they throw. */
  sendParts(parts: AsyncIterable<Buffer> | Iterable<Buffer>): Promise<void> {
    return this.#turns.run(async () => {
      try {
        for await (const part of parts) {
          if (this.#socket.readyState !== this.#socket.OPEN) return;
          await this.#send(part, false);
        }
      } catch (error) {
        // Nothing else can be said in a message that was begun.
        this.#socket.terminate();
        throw error;
      }
      await this.#send(Buffer.alloc(0), true);
    });
  }

  #send(data: Buffer, fin: boolean): Promise<void> {
    return new Promise((resolve) => this.#socket.send(data, { binary: false, fin }, () => resolve()));
  }
}
