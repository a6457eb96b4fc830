const MAX_BUFFERS = 6;
const MIN_BYTES = 512 * 1024;
const MAX_BYTES = 4 * 1024 * 1024;

/** Large buffers for reuse by all sandboxes: a flood would otherwise leave one as garbage for every MiB. */
export class SpareBuffers {
  readonly #buffers: Buffer[] = [];

  /** A buffer that is large enough for a batch, if there is any. */
  take(): Buffer | undefined {
    return this.#buffers.pop();
  }

  /** Returns a buffer. Small ones, and more than a few, are left to the garbage collector. */
  give(buffer: Buffer): void {
    const isUseful = buffer.length >= MIN_BYTES && buffer.length <= MAX_BYTES;
    if (isUseful && this.#buffers.length < MAX_BUFFERS) this.#buffers.push(buffer);
  }
}
