import { type FileInfo, type OpenFile, type ReadOptions, SandboxError } from "@coppice/core/backend";
import { type Failure, fileError, readFailure } from "../wire/agent-error.js";
import type { Channel, Link } from "../wire/channel.js";
import { readFileInfo } from "../wire/file-info.js";
import { PayloadWriter, ProtocolError, Reply, Request, readWhole } from "../wire/frames.js";

const CHUNK_BYTES = 65_536;
/** Concurrent reads. */
const READ_AHEAD = 4;

/** A file inside, open for reading. */
export class AgentFile implements Channel, OpenFile {
  readonly #link: Link;
  readonly #path: string;
  readonly #opened = Promise.withResolvers<FileInfo>();
  readonly #reads: { readonly length: number; readonly answer: PromiseWithResolvers<Buffer> }[] = [];
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
    let ahead: { readonly start: number; readonly wanted: number; readonly data: Promise<Buffer> }[] = [];
    const end = offset + length;
    let position = offset;
    const ask = (): boolean => {
      const wanted = Math.min(CHUNK_BYTES, end - position);
      if (wanted <= 0) return false;
      const data = this.#read(position, wanted);
      // Handled in its turn, or never.
      data.catch(() => undefined);
      ahead.push({ start: position, wanted, data });
      position += wanted;
      return true;
    };
    for (let isMore = ask(); isMore; isMore = ahead.length > 0 || ask()) {
      const next = ahead.shift();
      const data = await next?.data;
      if (next === undefined || data === undefined || data.byteLength === 0) return;
      if (data.byteLength < next.wanted) {
        // The end, or a file of /proc, which comes in pieces: continue at the end of this one.
        ahead = [];
        position = next.start + data.byteLength;
      } else {
        while (ahead.length < READ_AHEAD && ask());
      }
      yield data;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const closed = new SandboxError("file_closed", "the file is closed");
    for (const { answer } of this.#reads.splice(0)) answer.reject(closed);
    this.#link.release();
  }

  receive(type: number, payload: Buffer): void {
    if (this.#info === undefined) {
      this.#receiveOpen(type, payload);
      return;
    }
    const read = this.#reads.shift();
    if (read === undefined) throw new ProtocolError("an answer to no read");
    if (payload.byteLength > read.length && type === Reply.Output)
      throw new ProtocolError("more than was asked for");
    if (type === Reply.Output) read.answer.resolve(payload);
    else if (type === Reply.Error) read.answer.reject(fileError(readFailure(payload), "read", this.#path));
    else throw new ProtocolError(`frame ${type} for a file`);
  }

  lost(reason: SandboxError): void {
    this.#lost = reason;
    this.#opened.reject(reason);
    for (const { answer } of this.#reads.splice(0)) answer.reject(reason);
  }

  #receiveOpen(type: number, payload: Buffer): void {
    if (type === Reply.Error) {
      this.#isClosed = true;
      this.#link.release();
      this.#opened.reject(openError(readFailure(payload), this.#path));
      return;
    }
    if (type !== Reply.Info) throw new ProtocolError(`frame ${type} for a file`);
    this.#info = readWhole(payload, (reader) => readFileInfo(reader, this.#path));
    this.#opened.resolve(this.#info);
  }

  async #read(offset: number, length: number): Promise<Buffer> {
    if (this.#lost !== undefined) throw this.#lost;
    if (this.#isClosed) throw new SandboxError("file_closed", "the file is closed");
    const answer = Promise.withResolvers<Buffer>();
    this.#reads.push({ length, answer });
    const payload = new PayloadWriter().u64(BigInt(Math.trunc(offset))).u32(length);
    this.#link.send(Request.Read, payload.finish());
    return answer.promise;
  }
}

function openError(failure: Failure, path: string): SandboxError {
  const options = { cause: failure };
  if (failure.code === "ENOENT" || failure.code === "ENOTDIR") {
    return new SandboxError("path_not_found", `path '${path}' does not exist`, options);
  }
  if (failure.code === "EISDIR") {
    return new SandboxError("path_is_directory", `path '${path}' is a directory`, options);
  }
  if (failure.code === "ENXIO") {
    return new SandboxError("file_not_regular", `path '${path}' is not a regular file`, options);
  }
  return fileError(failure, "open", path);
}
