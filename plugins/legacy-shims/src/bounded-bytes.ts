export class BoundedBytes {
  readonly #chunks: Uint8Array[] = [];
  #roomBytes: number;
  isTruncated = false;

  constructor(limitBytes: number) {
    this.#roomBytes = limitBytes;
  }

  push(chunk: Uint8Array): void {
    if (chunk.length > this.#roomBytes) this.isTruncated = true;
    if (this.#roomBytes === 0) return;
    // Copied: the chunk may be a window on a larger buffer.
    const kept = Uint8Array.prototype.slice.call(chunk, 0, this.#roomBytes);
    this.#chunks.push(kept);
    this.#roomBytes -= kept.length;
  }

  /** As UTF-8; invalid bytes become U+FFFD. */
  get text(): string {
    return Buffer.concat(this.#chunks).toString("utf8");
  }
}
