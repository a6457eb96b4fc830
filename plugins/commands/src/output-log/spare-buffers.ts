const MOST_BUFFERS = 6;
const SMALLEST_BYTES = 512 * 1024;
const LARGEST_BYTES = 4 * 1024 * 1024;

/**
 * Large buffers that wait for their next use, of all sandboxes together: a flood of output would have one
 * allocated, and collected as garbage, for every MiB.
 */
export class SpareBuffers {
  readonly #buffers: Buffer[] = [];

  /** One that is large enough for a batch, if there is any. */
  take(): Buffer | undefined {
    return this.#buffers.pop();
  }

  /** Nobody may use it any more. Small ones, and more than a few, are left to the garbage collector. */
  give(buffer: Buffer): void {
    const isUseful = buffer.length >= SMALLEST_BYTES && buffer.length <= LARGEST_BYTES;
    if (isUseful && this.#buffers.length < MOST_BUFFERS) this.#buffers.push(buffer);
  }
}
