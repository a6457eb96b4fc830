import { type FileInfo, type OpenFile, type ReadOptions, SandboxError } from "@coppice/core/backend";
import { fileError, readFailure } from "../wire/agent-error.js";
import type { Channel, Link } from "../wire/channel.js";
import { PayloadWriter, ProtocolError, Reply, Request } from "../wire/frames.js";

const CHUNK_BYTES = 65_536;
/** Concurrent reads. */
const READ_AHEAD = 4;

/** A file inside, open for reading. */
export class AgentFile implements Channel, OpenFile {
  readonly #link: Link;
  readonly #reads: { readonly length: number; readonly answer: PromiseWithResolvers<Buffer> }[] = [];
  #lost: SandboxError | undefined;
  #isClosed = false;

  constructor(
    link: Link,
    readonly info: FileInfo,
  ) {
    this.#link = link;
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
    for (const { answer } of this.#reads.splice(0)) answer.reject(reason);
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
