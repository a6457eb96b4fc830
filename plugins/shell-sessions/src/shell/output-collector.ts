import type { Output } from "@coppice/core/backend";
import { BytePieces } from "./byte-pieces.js";

/** Smaller pieces are joined: each would be a part of its own in an answer. */
const SMALL_BYTES = 32 * 1024;

/** Collects the output of a command up to a limit of each stream. */
export class OutputCollector {
  readonly #maxBytes: number;
  readonly #parts: { readonly stdout: Uint8Array[]; readonly stderr: Uint8Array[] } = {
    stdout: [],
    stderr: [],
  };
  readonly #lengths = { stdout: 0, stderr: 0 };
  #isTruncated = false;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Each stream has reached the limit. */
  get isFull(): boolean {
    return this.#isTruncated && this.#lengths.stdout + this.#lengths.stderr >= 2 * this.#maxBytes;
  }

  add({ stream, data }: Output): void {
    const name = stream === "stderr" ? "stderr" : "stdout";
    const part = data.subarray(0, this.#maxBytes - this.#lengths[name]);
    if (part.length < data.length) this.#isTruncated = true;
    if (part.length === 0) return;
    this.#parts[name].push(part);
    this.#lengths[name] += part.length;
  }

  result(): { readonly stdout: BytePieces; readonly stderr: BytePieces; readonly truncated: boolean } {
    const { stdout, stderr } = this.#parts;
    return { stdout: joinSmall(stdout), stderr: joinSmall(stderr), truncated: this.#isTruncated };
  }
}

function joinSmall(parts: readonly Uint8Array[]): BytePieces {
  const pieces: Uint8Array[] = [];
  let small: Uint8Array[] = [];
  let smallBytes = 0;
  const flush = (): void => {
    if (small.length > 0) pieces.push(Buffer.concat(small));
    small = [];
    smallBytes = 0;
  };
  for (const part of parts) {
    if (part.length >= SMALL_BYTES) {
      flush();
      pieces.push(part);
      continue;
    }
    small.push(part);
    smallBytes += part.length;
    if (smallBytes >= SMALL_BYTES) flush();
  }
  flush();
  return new BytePieces(pieces);
}
