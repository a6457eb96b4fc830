import type { Output } from "@coppice/core/backend";
import { BytePieces } from "./byte-pieces.js";

/** Size of the first piece of a stream; each further one is twice as large as the one before. */
const FIRST_BYTES = 4 * 1024;
const LARGEST_BYTES = 1024 * 1024;

/** Collects the output of a command up to a limit of each stream. */
export class OutputCollector {
  readonly #streams: { readonly stdout: StreamBytes; readonly stderr: StreamBytes };
  #isTruncated = false;

  constructor(maxBytes: number) {
    this.#streams = { stdout: new StreamBytes(maxBytes), stderr: new StreamBytes(maxBytes) };
  }

  /** Each stream has reached the limit. */
  get isFull(): boolean {
    const { stdout, stderr } = this.#streams;
    return this.#isTruncated && stdout.leftBytes === 0 && stderr.leftBytes === 0;
  }

  add({ stream, data }: Output): void {
    const bytes = this.#streams[stream === "stderr" ? "stderr" : "stdout"];
    if (data.length > bytes.leftBytes) this.#isTruncated = true;
    bytes.add(data.subarray(0, bytes.leftBytes));
  }

  result(): { readonly stdout: BytePieces; readonly stderr: BytePieces; readonly truncated: boolean } {
    const { stdout, stderr } = this.#streams;
    return { stdout: stdout.pieces(), stderr: stderr.pieces(), truncated: this.#isTruncated };
  }
}

/**
 * The bytes of a stream, copied into large pieces: V8 scans its heap for many small buffers that survive, and that takes
 * longer than the copy.
 */
class StreamBytes {
  readonly #full: Uint8Array[] = [];
  #current: Buffer = Buffer.alloc(0);
  #filled = 0;
  leftBytes: number;

  constructor(maxBytes: number) {
    this.leftBytes = maxBytes;
  }

  /** @param data at most as many bytes as are left. */
  add(data: Uint8Array): void {
    this.leftBytes -= data.length;
    for (let taken = 0; taken < data.length;) {
      if (this.#filled === this.#current.length) this.#grow();
      const part = data.subarray(taken, taken + this.#current.length - this.#filled);
      this.#current.set(part, this.#filled);
      this.#filled += part.length;
      taken += part.length;
    }
  }

  pieces(): BytePieces {
    const last = this.#current.subarray(0, this.#filled);
    return new BytePieces(last.length > 0 ? [...this.#full, last] : this.#full);
  }

  #grow(): void {
    if (this.#filled > 0) this.#full.push(this.#current);
    const size = Math.max(FIRST_BYTES, Math.min(2 * this.#current.length, LARGEST_BYTES));
    this.#current = Buffer.allocUnsafeSlow(size);
    this.#filled = 0;
  }
}
