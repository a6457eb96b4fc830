import type { SandboxError } from "@coppice/core/backend";
import { INPUT_WINDOW_BYTES, ProtocolError } from "./frames.js";

const PIECE_BYTES = 65_536;

/** Bytes for the agent, in the order of the calls. Unacknowledged bytes never exceed the agent's window. */
export class InputWindow {
  readonly #post: (data: Uint8Array) => void;
  #windowBytes: number;
  #sentBytes = 0;
  #takenBytes = 0;
  #last: Promise<void> = Promise.resolve();
  #changed = Promise.withResolvers<void>();
  #failure: (() => SandboxError) | undefined;

  constructor(post: (data: Uint8Array) => void, windowBytes: number = INPUT_WINDOW_BYTES) {
    this.#post = post;
    this.#windowBytes = windowBytes;
  }

  /** Resolves when all of it is acknowledged. The data must not change before. */
  async write(data: Uint8Array): Promise<void> {
    const end = await this.send(data);
    await this.#until(() => this.#takenBytes >= end);
  }

  /** Resolves when all of it is sent, with the total of sent bytes. */
  send(data: Uint8Array): Promise<number> {
    const sent = this.#sendAfter(this.#last, data);
    this.#last = sent.then(
      () => undefined,
      () => undefined,
    );
    return sent;
  }

  /** Resolves when at most this many bytes are unacknowledged. */
  async drainTo(bytes: number): Promise<void> {
    await this.#last;
    await this.#until(() => this.#sentBytes - this.#takenBytes <= bytes);
  }

  /** Acknowledges bytes. @throws ProtocolError for more than was sent. */
  taken(bytes: number): void {
    this.#takenBytes += bytes;
    this.#windowBytes += bytes;
    if (this.#takenBytes > this.#sentBytes) throw new ProtocolError("more input was taken than was sent");
    this.#wake();
  }

  /** Fails all pending and later writes; `failure` makes the error lazily, because mostly no write needs it. */
  fail(failure: () => SandboxError): void {
    this.#failure ??= failure;
    this.#wake();
  }

  async #sendAfter(before: Promise<void>, data: Uint8Array): Promise<number> {
    await before;
    for (let start = 0; start < data.byteLength;) {
      await this.#until(() => this.#windowBytes > 0);
      if (this.#failure !== undefined) throw this.#failure();
      const piece = data.subarray(start, start + Math.min(PIECE_BYTES, this.#windowBytes));
      this.#windowBytes -= piece.byteLength;
      this.#sentBytes += piece.byteLength;
      start += piece.byteLength;
      this.#post(piece);
    }
    return this.#sentBytes;
  }

  async #until(isTrue: () => boolean): Promise<void> {
    // Bytes acknowledged before an end count as written.
    while (!isTrue()) {
      if (this.#failure !== undefined) throw this.#failure();
      await this.#changed.promise;
    }
  }

  #wake(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }
}
