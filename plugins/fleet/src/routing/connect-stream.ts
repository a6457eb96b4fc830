import type { ServerResponse } from "node:http";
import { END_STREAM, ENVELOPE_HEAD_BYTES as HEAD_BYTES, envelope } from "@coppice/core";

/** What the client of a Connect stream is told when the server that it comes from is gone. */
export interface Loss {
  readonly message: string;
  /** False of a server that is there: it cut the stream itself, as it does when a sandbox is killed. */
  readonly isLost: () => Promise<boolean>;
}

/** The answer of a Connect stream, which another server may leave unfinished. */
export class ConnectStream {
  readonly #head = Buffer.alloc(HEAD_BYTES);
  #headLength = 0;
  /** Bytes of the message that are still to come. */
  #left = 0;
  #isOver = false;

  /**
   * Cuts the answer, or where its server is gone and no message is unfinished, ends it with `unavailable`. E2B's SDKs
   * take a cut for the end of the sandbox.
   */
  async breakOff(response: ServerResponse, { isLost, message }: Loss): Promise<void> {
    if (!this.#mayEnd || !(await isLost())) {
      response.destroy();
      return;
    }
    const error = { code: "unavailable", message };
    response.end(envelope(END_STREAM, Buffer.from(JSON.stringify({ error }))));
  }

  /** Follows the answer. */
  take(bytes: Buffer): void {
    for (let at = 0; at < bytes.length;) {
      const skipped = Math.min(this.#left, bytes.length - at);
      this.#left -= skipped;
      at += skipped;
      if (this.#headLength === 0 && at + HEAD_BYTES <= bytes.length) {
        this.#begin(bytes, at);
        at += HEAD_BYTES;
        continue;
      }
      const taken = bytes.copy(this.#head, this.#headLength, at);
      this.#headLength += taken;
      at += taken;
      if (this.#headLength < HEAD_BYTES) continue;
      this.#headLength = 0;
      this.#begin(this.#head, 0);
    }
  }

  /** True between two messages, where a last one may follow. */
  get #mayEnd(): boolean {
    return this.#headLength === 0 && this.#left === 0 && !this.#isOver;
  }

  #begin(bytes: Buffer, at: number): void {
    this.#isOver = ((bytes[at] ?? 0) & END_STREAM) !== 0;
    this.#left = bytes.readUInt32BE(at + 1);
  }
}
