import type { Spool } from "@coppice/core";

export type SpoolFile = Awaited<ReturnType<Spool["open"]>>;

/**
 * Bytes in the pieces in which they came, the first of them in a file when they are many: joining those of a large
 * output would take time and memory once more.
 */
export class BytePieces implements AsyncIterable<Uint8Array> {
  readonly #pieces: readonly Uint8Array[];
  readonly #file: SpoolFile | undefined;

  /** @param pieces what comes after the file: not empty, unless there is no byte at all. */
  constructor(pieces: readonly Uint8Array[], file?: SpoolFile) {
    this.#pieces = pieces;
    this.#file = file;
  }

  /** All pieces. Each may be overwritten by the next. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    if (this.#file !== undefined) yield* this.#file.pieces();
    yield* this.#pieces;
  }

  /** All of it, when it is known to be short. */
  async join(): Promise<Buffer> {
    const copies: Buffer[] = [];
    for await (const piece of this) copies.push(Buffer.from(piece));
    return Buffer.concat(copies);
  }

  with(more: Uint8Array): BytePieces {
    return new BytePieces([...this.#pieces, more], this.#file);
  }

  /** Without its last byte, if it is that one. */
  withoutLast(byte: number): BytePieces {
    const last = this.#pieces.at(-1);
    if (last?.at(-1) !== byte) return this;
    return new BytePieces([...this.#pieces.slice(0, -1), last.subarray(0, -1)], this.#file);
  }
}
