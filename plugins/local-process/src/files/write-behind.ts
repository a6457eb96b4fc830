import type { FileHandle } from "node:fs/promises";

const BLOCK_BYTES = 512 * 1024;

/**
 * Writes a file sequentially in large blocks: one is filled while another one is written. Copies its input, because the
 * owner of a chunk may reuse its memory.
 */
export class WriteBehind {
  readonly #file: FileHandle;
  #filling: Buffer = Buffer.allocUnsafeSlow(BLOCK_BYTES);
  #filled = 0;
  #spare: Buffer | undefined;
  #writing: Promise<void> = Promise.resolve();

  constructor(file: FileHandle) {
    this.#file = file;
  }

  /** Resolves when there is room for more. @throws Error of the file system, also of an earlier write. */
  async write(data: Uint8Array): Promise<void> {
    for (let taken = 0; taken < data.byteLength;) {
      const part = data.subarray(taken, taken + BLOCK_BYTES - this.#filled);
      this.#filling.set(part, this.#filled);
      this.#filled += part.byteLength;
      taken += part.byteLength;
      if (this.#filled === BLOCK_BYTES) await this.#send();
    }
  }

  /** Resolves when all of it is written. @throws Error of the file system */
  async end(): Promise<void> {
    await this.#send();
    await this.#writing;
  }

  async #send(): Promise<void> {
    await this.#writing;
    const block = this.#filling;
    this.#writing = writeAll(this.#file, block.subarray(0, this.#filled));
    // The next call of `write` or `end` throws it.
    this.#writing.catch(() => undefined);
    this.#filling = this.#spare ?? Buffer.allocUnsafeSlow(BLOCK_BYTES);
    this.#spare = block;
    this.#filled = 0;
  }
}

async function writeAll(file: FileHandle, data: Uint8Array): Promise<void> {
  for (let written = 0; written < data.byteLength;) {
    written += (await file.write(data, written)).bytesWritten;
  }
}
