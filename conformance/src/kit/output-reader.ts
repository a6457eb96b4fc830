import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import type { Output, Process } from "@coppice/core/backend";

const POLL_MS = 10;
const TIMEOUT_MS = 5_000;

/** Reads a process's output as it comes, and waits for expected text. */
export class OutputReader {
  readonly ended: Promise<void>;
  readonly #pieces: Output[] = [];
  #hasEnded = false;

  constructor(process: Process) {
    this.ended = this.#read(process.output);
  }

  /** Output so far, of all streams. */
  get bytes(): Buffer {
    return Buffer.concat(this.#pieces.map(({ data }) => data));
  }

  get text(): string {
    return this.bytes.toString();
  }

  get streams(): ReadonlySet<Output["stream"]> {
    return new Set(this.#pieces.map(({ stream }) => stream));
  }

  /** Waits until the text matches. @throws AssertionError with the text so far. */
  async sees(pattern: RegExp, timeoutMs = TIMEOUT_MS): Promise<RegExpExecArray> {
    const endMs = performance.now() + timeoutMs;
    for (;;) {
      const hasEnded = this.#hasEnded;
      const found = pattern.exec(this.text);
      if (found) return found;
      const { text } = this;
      assert.ok(
        !hasEnded,
        `the output ended without ${String(pattern)}: ${JSON.stringify(text.slice(-500))}`,
      );
      assert.ok(
        performance.now() < endMs,
        `no ${String(pattern)} within ${timeoutMs} ms: ${JSON.stringify(text.slice(-500))}`,
      );
      await sleep(POLL_MS);
    }
  }

  /** Waits for the end of the output. @throws AssertionError with the text so far. */
  async end(timeoutMs = TIMEOUT_MS): Promise<Buffer> {
    const endMs = performance.now() + timeoutMs;
    while (!this.#hasEnded) {
      const { text } = this;
      assert.ok(
        performance.now() < endMs,
        `the output did not end within ${timeoutMs} ms: ${JSON.stringify(text.slice(-500))}`,
      );
      await sleep(POLL_MS);
    }
    return this.bytes;
  }

  async #read(output: AsyncIterable<Output>): Promise<void> {
    for await (const piece of output) this.#pieces.push({ ...piece, data: Uint8Array.from(piece.data) });
    this.#hasEnded = true;
  }
}
