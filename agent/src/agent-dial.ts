import { Duplex } from "node:stream";
import { SandboxError } from "@coppice/core/backend";
import { type Channel, type Link, PayloadReader, ProtocolError, Reply, Request } from "./wire/frames.js";
import { CreditedQueue } from "./wire/credited-queue.js";
import { InputWindow } from "./wire/input-window.js";

export const DIAL_WINDOW_BYTES = 262_144;

/** A TCP connection inside. As a stream, its directions close independently. */
export class AgentDial extends Duplex implements Channel {
  readonly #link: Link;
  readonly #queue: CreditedQueue<Buffer>;
  readonly #input: InputWindow;
  #hasOutputEnded = false;

  constructor(link: Link) {
    super({ allowHalfOpen: true });
    this.#link = link;
    // The agent may end before the caller can listen: an unhandled error would end the server.
    this.on("error", () => undefined);
    this.#queue = new CreditedQueue(link, DIAL_WINDOW_BYTES);
    this.#input = new InputWindow((data) => link.send(Request.Input, data));
  }

  receive(type: number, payload: Buffer): void {
    if (type === Reply.Output) {
      if (this.#hasOutputEnded) throw new ProtocolError("output after its end");
      this.#queue.push(payload, this.#queue.spend(payload.byteLength));
    } else if (type === Reply.OutputEnd) {
      this.#hasOutputEnded = true;
      this.#queue.end();
    } else if (type === Reply.Taken) {
      this.#input.taken(new PayloadReader(payload).u32());
    } else if (type === Reply.InputClosed) {
      this.#input.fail(() => new SandboxError("connection_lost", "the other side closed the connection"));
    } else {
      throw new ProtocolError(`frame ${type} for a connection`);
    }
  }

  lost(reason: SandboxError): void {
    this.#input.fail(() => reason);
    this.#queue.fail(reason);
    this.destroy(reason);
  }

  override _read(): void {
    // Never synchronously: a push before the reader took the last chunk would be joined with it, in a copy.
    this.#queue.take().then(
      (data) => this.push(data ?? null),
      (error: unknown) => this.destroy(asError(error)),
    );
  }

  override _write(data: Buffer, _encoding: BufferEncoding, done: (error?: Error) => void): void {
    void this.#pass(data, done);
  }

  override _final(done: (error?: Error) => void): void {
    this.#link.send(Request.InputEnd);
    done();
  }

  override _destroy(error: Error | null, done: (error: Error | null) => void): void {
    this.#queue.clear();
    this.#input.fail(() => new SandboxError("connection_lost", "the connection was closed"));
    this.#link.release();
    done(error);
  }

  async #pass(data: Buffer, done: (error?: Error) => void): Promise<void> {
    let failure: Error | undefined;
    try {
      await this.#input.send(data);
    } catch (error) {
      failure = asError(error);
    }
    done(failure);
  }
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
