import { type FileInfo, type OpenFile, type ReadOptions, SandboxError } from "@coppice/core/backend";
import { type Failure, fileError, readFailure } from "./agent-error.js";
import type { Channel, Link } from "./channel.js";
import { readFileInfo } from "./file-info.js";
import { PayloadReader, PayloadWriter, ProtocolError, Reply, Request } from "./frames.js";

const CHUNK_BYTES = 65_536;
/** Reads under way at once. */
const READ_AHEAD = 4;

/** A file inside that is open for reading. */
export class AgentFile implements Channel, OpenFile {
  readonly #link: Link;
  readonly #path: string;
  readonly #opened = Promise.withResolvers<FileInfo>();
  readonly #reads: PromiseWithResolvers<Buffer>[] = [];
  #info: FileInfo | undefined;
  #lost: SandboxError | undefined;
  #isClosed = false;

  constructor(link: Link, path: string) {
    this.#link = link;
    this.#path = path;
  }

  /** Resolves when it is open. @throws SandboxError */
  async open(): Promise<this> {
    await this.#opened.promise;
    return this;
  }

  get info(): FileInfo {
    if (this.#info === undefined) throw new Error("the file is not open yet");
    return this.#info;
  }

  async *content({
    offset = 0,
    length = Number.POSITIVE_INFINITY,
  }: ReadOptions = {}): AsyncGenerator<Uint8Array> {
    const ahead: Promise<Buffer>[] = [];
    let position = offset;
    let left = length;
    const ask = (): void => {
      const wanted = Math.min(CHUNK_BYTES, left);
      if (wanted <= 0) return;
      const reading = this.#read(position, wanted);
      // It is looked at in its turn, or never.
      reading.catch(() => undefined);
      ahead.push(reading);
      position += wanted;
      left -= wanted;
    };
    ask();
    for (;;) {
      const data = await ahead.shift();
      if (data === undefined || data.byteLength === 0) return;
      // Only what is long is worth asking for ahead.
      while (data.byteLength === CHUNK_BYTES && left > 0 && ahead.length < READ_AHEAD) ask();
      yield data;
      if (data.byteLength < CHUNK_BYTES && ahead.length === 0) {
        if (left <= 0) return;
        ask();
      } else if (data.byteLength < CHUNK_BYTES) {
        // It ends here, or grows while it is read: what comes after is asked for from here on.
        return;
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const closed = new SandboxError("failed_precondition", "the file is closed");
    for (const read of this.#reads.splice(0)) read.reject(closed);
    if (this.#lost === undefined) this.#link.release();
  }

  receive(type: number, payload: Buffer): void {
    if (this.#info === undefined) {
      this.#receiveOpen(type, payload);
      return;
    }
    const read = this.#reads.shift();
    if (read === undefined) throw new ProtocolError("an answer to no read");
    if (type === Reply.Output) read.resolve(payload);
    else if (type === Reply.Error) read.reject(fileError(readFailure(payload), "read", this.#path));
    else throw new ProtocolError(`frame ${type} for a file`);
  }

  lost(reason: SandboxError): void {
    this.#lost = reason;
    this.#opened.reject(reason);
    for (const read of this.#reads.splice(0)) read.reject(reason);
  }

  #receiveOpen(type: number, payload: Buffer): void {
    if (type === Reply.Error) {
      this.#isClosed = true;
      this.#link.release();
      this.#opened.reject(openError(readFailure(payload), this.#path));
      return;
    }
    if (type !== Reply.Info) throw new ProtocolError(`frame ${type} for a file`);
    const reader = new PayloadReader(payload);
    this.#info = readFileInfo(reader, this.#path);
    reader.end();
    this.#opened.resolve(this.#info);
  }

  async #read(offset: number, length: number): Promise<Buffer> {
    if (this.#lost !== undefined) throw this.#lost;
    if (this.#isClosed) throw new SandboxError("failed_precondition", "the file is closed");
    const read = Promise.withResolvers<Buffer>();
    this.#reads.push(read);
    const payload = new PayloadWriter().u64(BigInt(Math.trunc(offset))).u32(length);
    this.#link.send(Request.Read, payload.finish());
    return read.promise;
  }
}

function openError(failure: Failure, path: string): SandboxError {
  const options = { cause: failure };
  if (failure.code === "ENOENT" || failure.code === "ENOTDIR") {
    return new SandboxError("not_found", `path '${path}' does not exist`, options);
  }
  if (failure.code === "EISDIR") {
    return new SandboxError("invalid_argument", `path '${path}' is a directory`, options);
  }
  if (failure.code === "ENXIO") {
    return new SandboxError("invalid_argument", `path '${path}' is not a regular file`, options);
  }
  return fileError(failure, "open", path);
}
