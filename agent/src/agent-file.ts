import { type FileInfo, type OpenFile, type ReadOptions, SandboxError } from "@coppice/core/backend";
import { type Failure, fileError, readFailure } from "./agent-error.js";
import type { Channel, Link } from "./channel.js";
import { readFileInfo } from "./file-info.js";
import { PayloadReader, PayloadWriter, ProtocolError, Reply, Request } from "./frames.js";

const CHUNK_BYTES = 65_536;
/** Reads under way at once. */
const READ_AHEAD = 4;

/** What was asked for, and what has come of it. */
interface Read {
  readonly length: number;
  readonly parts: Buffer[];
  readonly answer: PromiseWithResolvers<readonly Buffer[]>;
}

/** A file inside that is open for reading. */
export class AgentFile implements Channel, OpenFile {
  readonly #link: Link;
  readonly #path: string;
  readonly #opened = Promise.withResolvers<FileInfo>();
  readonly #reads: Read[] = [];
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
    let ahead: {
      readonly start: number;
      readonly wanted: number;
      readonly data: Promise<readonly Buffer[]>;
    }[] = [];
    const end = offset + length;
    let position = offset;
    const ask = (): boolean => {
      const wanted = Math.min(CHUNK_BYTES, end - position);
      if (wanted <= 0) return false;
      const data = this.#read(position, wanted);
      // It is looked at in its turn, or never.
      data.catch(() => undefined);
      ahead.push({ start: position, wanted, data });
      position += wanted;
      return true;
    };
    for (let isMore = ask(); isMore; isMore = ahead.length > 0 || ask()) {
      const next = ahead.shift();
      const parts = await next?.data;
      if (next === undefined || parts === undefined) return;
      const readBytes = bytesOf(parts);
      if (readBytes === 0) return;
      if (readBytes < next.wanted) {
        // The end, or a file of /proc, which comes in pieces of its own: on from where this one ended.
        ahead = [];
        position = next.start + readBytes;
      } else {
        while (ahead.length < READ_AHEAD && ask());
      }
      yield* parts;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    const closed = new SandboxError("failed_precondition", "the file is closed");
    for (const { answer } of this.#reads.splice(0)) answer.reject(closed);
    if (this.#lost === undefined) this.#link.release();
  }

  receive(type: number, payload: Buffer, restBytes: number): void {
    if (this.#info === undefined) {
      this.#receiveOpen(type, payload);
      return;
    }
    const [read] = this.#reads;
    if (read === undefined) throw new ProtocolError("an answer to no read");
    if (type === Reply.Output) {
      read.parts.push(payload);
      if (bytesOf(read.parts) + restBytes > read.length) throw new ProtocolError("more than was asked for");
      if (restBytes > 0) return;
    }
    this.#reads.shift();
    if (type === Reply.Output) read.answer.resolve(read.parts);
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
    const reader = new PayloadReader(payload);
    this.#info = readFileInfo(reader, this.#path);
    reader.end();
    this.#opened.resolve(this.#info);
  }

  async #read(offset: number, length: number): Promise<readonly Buffer[]> {
    if (this.#lost !== undefined) throw this.#lost;
    if (this.#isClosed) throw new SandboxError("failed_precondition", "the file is closed");
    const answer = Promise.withResolvers<readonly Buffer[]>();
    this.#reads.push({ length, parts: [], answer });
    const payload = new PayloadWriter().u64(BigInt(Math.trunc(offset))).u32(length);
    this.#link.send(Request.Read, payload.finish());
    return answer.promise;
  }
}

function bytesOf(parts: readonly Buffer[]): number {
  return parts.reduce((sum, { byteLength }) => sum + byteLength, 0);
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
