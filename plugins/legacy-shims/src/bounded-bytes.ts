export class BoundedBytes {
  readonly #limitBytes: number;
  readonly #chunks: Uint8Array[] = [];
  #lengthBytes = 0;
  #isTruncated = false;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  push(chunk: Uint8Array): void {
    const room = this.#limitBytes - this.#lengthBytes;
    if (chunk.length > room) this.#isTruncated = true;
    if (room <= 0) return;
    // Copied: the chunk may be a window on a larger buffer.
    const kept = Uint8Array.prototype.slice.call(chunk, 0, room);
    this.#chunks.push(kept);
    this.#lengthBytes += kept.length;
  }

  get isTruncated(): boolean {
    return this.#isTruncated;
  }

  /** As UTF-8; invalid bytes become U+FFFD. */
  get text(): string {
    return Buffer.concat(this.#chunks).toString("utf8");
  }
}
