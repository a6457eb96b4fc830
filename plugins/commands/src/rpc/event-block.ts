/** Data that becomes events together, at most; all of a larger piece. */
export const BATCH_BYTES: number = 256 * 1024;

/** Smaller blocks are left to the collector. */
const POOLED_FROM_BYTES = 32 * 1024;
/** Holds a batch as JSON. */
const BLOCK_BYTES = 360 * 1024;
const SPARE_BLOCKS = 4;

const spares: Buffer[] = [];

/** Memory for events that are on their way to a client, used again: a flood would leave as much garbage as output. */
export class EventBlock {
  readonly bytes: Buffer;
  readonly #block: Buffer | undefined;

  constructor(bytes: number) {
    const isPooled = bytes >= POOLED_FROM_BYTES && bytes <= BLOCK_BYTES;
    this.#block = isPooled ? (spares.pop() ?? Buffer.allocUnsafeSlow(BLOCK_BYTES)) : undefined;
    this.bytes = this.#block?.subarray(0, bytes) ?? Buffer.allocUnsafe(bytes);
  }

  /** Returns the memory. Nobody may read it any more. */
  release(): void {
    if (this.#block !== undefined && spares.length < SPARE_BLOCKS) spares.push(this.#block);
  }
}
