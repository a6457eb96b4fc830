/** Bytes in the pieces in which they came: joining those of a large output would take time and memory once more. */
export class BytePieces {
  readonly pieces: readonly Uint8Array[];

  constructor(pieces: readonly Uint8Array[]) {
    this.pieces = pieces;
  }

  get length(): number {
    return this.pieces.reduce((length, piece) => length + piece.length, 0);
  }

  /** All of it, when it is known to be short. */
  join(): Buffer {
    return Buffer.concat(this.pieces);
  }

  toString(): string {
    return this.join().toString();
  }

  with(more: Uint8Array): BytePieces {
    return new BytePieces([...this.pieces, more]);
  }

  /** Without its last byte, if it is that one. */
  withoutLast(byte: number): BytePieces {
    const last = this.pieces.at(-1);
    if (last?.at(-1) !== byte) return this;
    return new BytePieces([...this.pieces.slice(0, -1), last.subarray(0, -1)]);
  }
}
