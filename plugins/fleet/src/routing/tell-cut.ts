import type { ServerResponse } from "node:http";

/** Of each message of a Connect stream: flags, and the number of the bytes that follow. */
const HEAD_BYTES = 5;
const END_STREAM = 0x02;

/** What the client of a Connect stream is told when the server that it comes from is gone. */
export interface Loss {
  readonly message: string;
  /** False of a server that is there: it cut the stream itself, as it does when a sandbox is killed. */
  readonly isLost: () => Promise<boolean>;
}

/**
 * Makes the answer of a Connect stream that is cut between two messages, because its server is gone, end with
 * `unavailable`. E2B's SDKs take a cut for the end of the sandbox.
 */
export function tellCut(response: ServerResponse, { isLost, message }: Loss): void {
  const messages = new Messages();
  const write = response.write.bind(response) as (...words: readonly unknown[]) => boolean;
  const destroy = response.destroy.bind(response);
  response.write = (bytes: Buffer, ...words: readonly unknown[]) => {
    messages.take(bytes);
    return write(bytes, ...words);
  };
  response.destroy = (error?: Error) => {
    response.destroy = destroy;
    if (error !== undefined || response.destroyed || !messages.mayEnd) return destroy(error);
    void isLost().then((is) => {
      if (is) response.end(endOf(message));
      else destroy();
    });
    return response;
  };
}

function endOf(message: string): Buffer {
  const text = Buffer.from(JSON.stringify({ error: { code: "unavailable", message } }));
  const head = Buffer.of(END_STREAM, 0, 0, 0, 0);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}

/** Where a stream is in its messages. */
class Messages {
  readonly #head = Buffer.alloc(HEAD_BYTES);
  #headLength = 0;
  /** Bytes of the message that are still to come. */
  #left = 0;
  #isOver = false;

  /** True between two messages, where a last one may follow. */
  get mayEnd(): boolean {
    return this.#headLength === 0 && this.#left === 0 && !this.#isOver;
  }

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

  #begin(bytes: Buffer, at: number): void {
    this.#isOver = ((bytes[at] ?? 0) & END_STREAM) !== 0;
    this.#left = bytes.readUInt32BE(at + 1);
  }
}
