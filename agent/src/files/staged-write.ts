import { type FileInfo, SandboxError } from "@coppice/core/backend";
import { Handover, SharedInput } from "../handover/handover.js";
import { type Failure, readFailure, readFileInfo } from "../wire/answers.js";
import {
  type Channel,
  type Link,
  PayloadReader,
  ProtocolError,
  Reply,
  Request,
  readWhole,
} from "../wire/frames.js";
import { InputWindow } from "../wire/input-window.js";

const UNDER_WAY_BYTES = 131_072;
const BLOCK_BYTES = 65_536;

/** A file write that becomes visible only when it is complete. */
export class StagedWrite implements Channel {
  readonly #link: Link;
  readonly #path: string;
  readonly #errorOf: (failure: Failure) => SandboxError;
  readonly #input: InputWindow;
  readonly #block = new Block();
  readonly #handover: Handover;
  #shared: Promise<SharedInput | undefined> | undefined;
  readonly #done = Promise.withResolvers<FileInfo>();

  constructor(link: Link, path: string, errorOf: (failure: Failure) => SandboxError) {
    this.#link = link;
    this.#path = path;
    this.#errorOf = errorOf;
    this.#input = new InputWindow((data) => link.send(Request.Input, data));
    this.#handover = new Handover(link);
    // The caller gets the error from `write` or `commit`.
    this.#done.promise.catch(() => undefined);
  }

  /** Resolves when there is room for more. The data may change afterwards. @throws SandboxError */
  async write(data: Uint8Array): Promise<void> {
    this.#shared ??= SharedInput.open(this.#handover);
    const shared = await this.#shared;
    if (shared === undefined) {
      for (const full of this.#block.add(data)) await this.#send(full);
      return;
    }
    await shared.write(data).catch(async (error: unknown) => {
      // The agent closes its end when it fails, and says why.
      await this.#done.promise;
      throw error;
    });
  }

  async commit(): Promise<FileInfo> {
    const rest = this.#block.rest();
    if (rest.byteLength > 0) await this.#send(rest);
    this.#link.send(Request.InputEnd);
    return this.#done.promise;
  }

  abort(): void {
    this.#link.release();
    this.#close();
  }

  receive(type: number, payload: Buffer): void {
    if (type === Reply.Shared) {
      this.#handover.receive(payload);
    } else if (type === Reply.Taken) {
      this.#input.taken(new PayloadReader(payload).u32());
    } else if (type === Reply.Error) {
      const error = this.#errorOf(readFailure(payload));
      this.#input.fail(() => error);
      this.#done.reject(error);
      this.abort();
    } else if (type === Reply.Info) {
      this.#done.resolve(readWhole(payload, (reader) => readFileInfo(reader, this.#path)));
      this.abort();
    } else {
      throw new ProtocolError(`frame ${type} for a write`);
    }
  }

  lost(reason: SandboxError): void {
    this.#input.fail(() => reason);
    this.#done.reject(reason);
    this.#close();
  }

  async #send(data: Uint8Array): Promise<void> {
    await this.#input.send(data);
    await this.#input.drainTo(UNDER_WAY_BYTES);
  }

  #close(): void {
    this.#handover.lost();
    void this.#shared?.then((shared) => shared?.destroy());
  }
}

class Block {
  #bytes = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  #length = 0;

  *add(chunk: Uint8Array): Generator<Buffer, undefined> {
    for (let start = 0; start < chunk.byteLength;) {
      const piece = chunk.subarray(start, start + BLOCK_BYTES - this.#length);
      this.#bytes.set(piece, this.#length);
      this.#length += piece.byteLength;
      start += piece.byteLength;
      if (this.#length === BLOCK_BYTES) yield this.rest();
    }
  }

  rest(): Buffer {
    const full = this.#bytes.subarray(0, this.#length);
    this.#bytes = Buffer.allocUnsafeSlow(BLOCK_BYTES);
    this.#length = 0;
    return full;
  }
}
