import { type FileInfo, SandboxError } from "@coppice/core/backend";
import { type Failure, readFailure } from "../wire/agent-error.js";
import type { Channel, Link } from "../wire/channel.js";
import { readFileInfo } from "../wire/file-info.js";
import { PayloadReader, ProtocolError, Reply, Request, readWhole } from "../wire/frames.js";
import { InputWindow } from "../wire/input-window.js";

const UNDER_WAY_BYTES = 131_072;

/** A file write that becomes visible only when it is complete. */
export class StagedWrite implements Channel {
  readonly #link: Link;
  readonly #path: string;
  readonly #errorOf: (failure: Failure) => SandboxError;
  readonly #input: InputWindow;
  readonly #done = Promise.withResolvers<FileInfo>();

  constructor(link: Link, path: string, errorOf: (failure: Failure) => SandboxError) {
    this.#link = link;
    this.#path = path;
    this.#errorOf = errorOf;
    this.#input = new InputWindow((data) => link.send(Request.Input, data));
    // The caller gets the error from `write` or `commit`.
    this.#done.promise.catch(() => undefined);
  }

  /** Resolves when there is room for more. The data must not change afterwards. @throws SandboxError */
  async write(data: Uint8Array): Promise<void> {
    await this.#input.send(data);
    await this.#input.drainTo(UNDER_WAY_BYTES);
  }

  /** Completes the file. @throws SandboxError */
  async commit(): Promise<FileInfo> {
    this.#link.send(Request.InputEnd);
    return this.#done.promise;
  }

  /** Discards the file. */
  abort(): void {
    this.#link.release();
  }

  receive(type: number, payload: Buffer): void {
    if (type === Reply.Taken) {
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
  }
}
