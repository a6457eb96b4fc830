import type { Duplex } from "node:stream";
import { frameHeader } from "./frames.js";

/** Larger payloads are written without a copy, smaller ones are joined. */
const COPY_BELOW_BYTES = 4_096;
const LATER_MS = 2;
const SETTLED = Promise.resolve();

/** Sends frames; those of one turn of the event loop go together. */
export class FrameWriter {
  readonly #stream: Duplex;
  #parts: Uint8Array[] = [];
  #isScheduled = false;
  #isScheduledLater = false;
  readonly #flush = (): void => this.flush();

  constructor(stream: Duplex) {
    this.#stream = stream;
  }

  /** The payload must not change until the other side has it. */
  send(type: number, id: number, payload?: Uint8Array): void {
    this.#add(type, id, payload);
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    // `queueMicrotask` of Node makes a resource for each.
    void SETTLED.then(this.#flush);
  }

  /** Sends a frame that nobody waits for: with the next one, or soon. By itself it would wake the agent once more. */
  sendLater(type: number, id: number, payload?: Uint8Array): void {
    this.#add(type, id, payload);
    if (this.#isScheduled || this.#isScheduledLater) return;
    this.#isScheduledLater = true;
    setTimeout(() => {
      this.#isScheduledLater = false;
      this.flush();
    }, LATER_MS);
  }

  #add(type: number, id: number, payload: Uint8Array | undefined): void {
    this.#parts.push(frameHeader(type, id, payload?.byteLength ?? 0));
    if (payload !== undefined && payload.byteLength > 0) this.#parts.push(payload);
  }

  flush(): void {
    this.#isScheduled = false;
    const parts = this.#parts;
    if (parts.length === 0 || this.#stream.destroyed || this.#stream.writableEnded) return;
    this.#parts = [];
    if (parts.every(({ byteLength }) => byteLength < COPY_BELOW_BYTES)) {
      this.#stream.write(Buffer.concat(parts));
      return;
    }
    let small: Uint8Array[] = [];
    this.#stream.cork();
    for (const part of parts) {
      if (part.byteLength < COPY_BELOW_BYTES) {
        small.push(part);
        continue;
      }
      if (small.length > 0) this.#stream.write(Buffer.concat(small));
      this.#stream.write(part);
      small = [];
    }
    if (small.length > 0) this.#stream.write(Buffer.concat(small));
    this.#stream.uncork();
  }
}
