/** The first bytes of a stream, or its last ones. */
export class BoundedBytes {
  readonly #limitBytes: number;
  readonly #kept: "first" | "last";
  #chunks: Uint8Array[] = [];
  #bytes = 0;
  isTruncated = false;

  constructor(limitBytes: number, kept: "first" | "last" = "first") {
    this.#limitBytes = limitBytes;
    this.#kept = kept;
  }

  /** No byte more is kept of a stream's beginning. */
  get isFull(): boolean {
    return this.#bytes === this.#limitBytes;
  }

  push(chunk: Uint8Array): void {
    const room = this.#limitBytes - this.#bytes;
    if (chunk.length > room) this.isTruncated = true;
    const wanted = this.#kept === "last" ? chunk.subarray(-this.#limitBytes) : chunk.subarray(0, room);
    if (wanted.length === 0) return;
    // Copied: the chunk may be a window on a larger buffer.
    this.#chunks.push(Uint8Array.prototype.slice.call(wanted));
    this.#bytes += wanted.length;
    if (this.#bytes <= this.#limitBytes) return;
    const last = Buffer.concat(this.#chunks).subarray(-this.#limitBytes);
    this.#chunks = [last];
    this.#bytes = last.length;
  }

  /** As UTF-8; invalid bytes become U+FFFD. */
  get text(): string {
    return Buffer.concat(this.#chunks).toString("utf8");
  }
}
