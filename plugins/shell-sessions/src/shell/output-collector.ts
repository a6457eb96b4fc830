import type { Output } from "@coppice/core/backend";

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

  add({ stream, data }: Output): void {
    const name = stream === "stderr" ? "stderr" : "stdout";
    const part = data.subarray(0, this.#maxBytes - this.#lengths[name]);
    if (part.length < data.length) this.#isTruncated = true;
    if (part.length === 0) return;
    this.#parts[name].push(part);
    this.#lengths[name] += part.length;
  }

  result(): { readonly stdout: Buffer; readonly stderr: Buffer; readonly truncated: boolean } {
    const { stdout, stderr } = this.#parts;
    return { stdout: Buffer.concat(stdout), stderr: Buffer.concat(stderr), truncated: this.#isTruncated };
  }
}
