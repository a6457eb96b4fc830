/** The most text that our kernels put in one message, and room for what is escaped in it. */
const SLAB_BYTES = 576 * 1024;
/** What is shorter is not worth it. */
const LEAST_BYTES = 64 * 1024;
/** One is filled, one waits, one is written. */
const MOST_KEPT = 4;

/**
 * Memory for long frames that is used again once somebody says that it may be. New memory for each would have the
 * whole heap collected every few dozen megabytes. What is never given back is collected like any other.
 */
export class BufferPool {
  readonly #kept: ArrayBufferLike[] = [];
  readonly #lent = new WeakSet<ArrayBufferLike>();

  /** Not zeroed. */
  take(size: number): Buffer {
    if (size < LEAST_BYTES || size > SLAB_BYTES) return Buffer.allocUnsafe(size);
    const slab = this.#kept.pop() ?? Buffer.allocUnsafeSlow(SLAB_BYTES).buffer;
    this.#lent.add(slab);
    return Buffer.from(slab, 0, size);
  }

  /** Nobody reads these bytes any more. Ignores what it has not lent. */
  giveBack({ buffer }: Buffer): void {
    if (!this.#lent.delete(buffer) || this.#kept.length === MOST_KEPT) return;
    this.#kept.push(buffer);
  }
}
