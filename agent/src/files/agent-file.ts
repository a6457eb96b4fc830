import {
  type FileInfo,
  type OpenFile,
  type PositionalReads,
  type ReadOptions,
  SandboxError,
} from "@coppice/core/backend";
import { closeInTurn, DirectFile, isPlainFile } from "../handover/direct-file.js";
import { Handover } from "../handover/handover.js";
import { fileError, readFailure, type Failure, readFileInfo } from "../wire/answers.js";
import {
  type Channel,
  type Link,
  PayloadWriter,
  ProtocolError,
  Reply,
  Request,
  Stage,
  readWhole,
} from "../wire/frames.js";

const CHUNK_BYTES = 65_536;
/** Asked for with the opening: another round trip would take as long as all the rest of reading a small file. */
const FIRST_BYTES = 4_096;
const READ_AHEAD = 4;

export class AgentFile implements Channel, OpenFile {
  readonly #link: Link;
  readonly #reads: { readonly length: number; readonly answer: PromiseWithResolvers<Buffer> }[] = [];
  readonly #handover: Handover;
  readonly #first: Promise<Buffer>;
  #direct: Promise<DirectFile | undefined> | undefined;
  #lost: SandboxError | undefined;
  #isClosed = false;

  /** @param link of a file that was asked for `firstPiece`. */
  constructor(
    link: Link,
    readonly info: FileInfo,
  ) {
    this.#link = link;
    this.#handover = new Handover(link);
    this.#first = this.#answer(FIRST_BYTES);
    // Handled when the contents are wanted, or never.
    this.#first.catch(() => undefined);
  }

  /** The request for the piece that every file is asked for first. */
  static firstPiece(): Uint8Array {
    return readRequest(0, FIRST_BYTES);
  }

  async direct(): Promise<PositionalReads | undefined> {
    this.#direct ??= this.#openDirect();
    return this.#direct;
  }

  async *content({
    offset = 0,
    length = Number.POSITIVE_INFINITY,
  }: ReadOptions = {}): AsyncGenerator<Uint8Array> {
    let ahead: { readonly start: number; readonly wanted: number; readonly data: Promise<Buffer> }[] = [];
    const end = offset + length;
    let position = offset;
    if (offset < FIRST_BYTES && length > 0) {
      const piece = (await this.#first).subarray(offset, end);
      position += piece.byteLength;
      if (piece.byteLength > 0) yield piece;
    }
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
    for (const { answer } of this.#reads.splice(0)) answer.reject(closedError());
    this.#handover.lost();
    // Before the agent's own, so that the agent, if anybody, waits until the space of a removed file is free.
    await (await this.#direct)?.close(closedError());
    this.#link.release();
  }

  receive(type: number, payload: Buffer): void {
    if (type === Reply.Shared) {
      this.#handover.receive(payload);
      return;
    }
    const read = this.#reads.shift();
    if (read === undefined) throw new ProtocolError("an answer to no read");
    if (payload.byteLength > read.length && type === Reply.Output)
      throw new ProtocolError("more than was asked for");
    if (type === Reply.Output) read.answer.resolve(payload);
    else if (type === Reply.Error)
      read.answer.reject(fileError(readFailure(payload), "read", this.info.path));
    else throw new ProtocolError(`frame ${type} for a file`);
  }

  lost(reason: SandboxError): void {
    this.#lost = reason;
    this.#handover.lost();
    // The file system of a sandbox that has ended must not stay in use.
    void this.#direct?.then((direct) => direct?.lost(reason));
    for (const { answer } of this.#reads.splice(0)) answer.reject(reason);
  }

  async #openDirect(): Promise<DirectFile | undefined> {
    const descriptor = await this.#handover.take();
    if (descriptor === undefined) return undefined;
    const isUsable = await isPlainFile(descriptor).catch(() => false);
    if (isUsable && !this.#isClosed && this.#lost === undefined) {
      return new DirectFile({
        descriptor,
        owner: this.#link.connection,
        errorOf: (error) =>
          fileError({ stage: Stage.File, code: error.code ?? "", detail: "" }, "read", this.info.path),
        elsewhere: (target, position) => this.#readInto(target, position),
      });
    }
    void closeInTurn(descriptor);
    return undefined;
  }

  async #readInto(target: Uint8Array, offset: number): Promise<number> {
    let count = 0;
    for await (const piece of this.content({ offset, length: target.byteLength })) {
      target.set(piece, count);
      count += piece.byteLength;
    }
    return count;
  }

  async #read(offset: number, length: number): Promise<Buffer> {
    if (this.#lost !== undefined) throw this.#lost;
    if (this.#isClosed) throw closedError();
    this.#link.send(Request.Read, readRequest(offset, length));
    return this.#answer(length);
  }

  async #answer(length: number): Promise<Buffer> {
    const answer = Promise.withResolvers<Buffer>();
    this.#reads.push({ length, answer });
    return answer.promise;
  }
}

function readRequest(offset: number, length: number): Uint8Array {
  return new PayloadWriter()
    .u64(BigInt(Math.trunc(offset)))
    .u32(length)
    .finish();
}

function closedError(): SandboxError {
  return new SandboxError("file_closed", "the file is closed");
}

/** A file that is being opened, and asked for its first bytes at the same time. */
export class FileOpening implements Channel {
  readonly #link: Link;
  readonly #path: string;
  readonly #errorOf: (failure: Failure) => SandboxError;
  readonly #outcome = Promise.withResolvers<AgentFile>();
  #opened: AgentFile | undefined;

  constructor(link: Link, path: string, errorOf: (failure: Failure) => SandboxError) {
    this.#link = link;
    this.#path = path;
    this.#errorOf = errorOf;
  }

  /** Asks for the first bytes, after the request to open. @throws SandboxError as `errorOf` makes it */
  async read(): Promise<AgentFile> {
    this.#link.send(Request.Read, AgentFile.firstPiece());
    return this.#outcome.promise;
  }

  receive(type: number, payload: Buffer): void {
    if (this.#opened !== undefined) {
      this.#opened.receive(type, payload);
    } else if (type === Reply.Info) {
      const info = readWhole(payload, (reader) => readFileInfo(reader, this.#path));
      this.#opened = new AgentFile(this.#link, info);
      this.#outcome.resolve(this.#opened);
    } else if (type === Reply.Error) {
      const failure = readFailure(payload);
      // The answer about the first bytes is still to come.
      this.#link.release();
      this.#outcome.reject(this.#errorOf(failure));
    } else throw new ProtocolError(`frame ${type} for a file that is being opened`);
  }

  lost(reason: SandboxError): void {
    this.#opened?.lost(reason);
    this.#outcome.reject(reason);
  }
}
