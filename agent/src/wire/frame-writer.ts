import type { Duplex } from "node:stream";
import { frameHeader } from "./frames.js";

/** Larger payloads are written without a copy, smaller ones are joined. */
const COPY_BELOW_BYTES = 4_096;

/** Sends frames; those of one turn of the event loop go together. */
export class FrameWriter {
  readonly #stream: Duplex;
  #parts: Uint8Array[] = [];
  #isScheduled = false;
  #isScheduledLater = false;

  constructor(stream: Duplex) {
    this.#stream = stream;
  }

  /** The payload must not change until the other side has it. */
  send(type: number, id: number, payload?: Uint8Array): void {
    this.#add(type, id, payload);
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    queueMicrotask(() => this.flush());
  }

  /** Sends a frame at low priority, after the work of this turn of the event loop. */
  sendLater(type: number, id: number, payload?: Uint8Array): void {
    this.#add(type, id, payload);
    if (this.#isScheduled || this.#isScheduledLater) return;
    this.#isScheduledLater = true;
    setImmediate(() => {
      this.#isScheduledLater = false;
      this.flush();
    });
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
