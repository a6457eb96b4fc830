import { syntheticFrame, type SharedFrame } from "./server-frame.js";
import type { HeldMemory } from "@coppice/core";

/** Messages that may be dropped when there are too many; without any other a client would wait forever. */
const OUTPUT = new Set([
  "stream",
  "display_data",
  "update_display_data",
  "execute_result",
  "comm_open",
  "comm_msg",
]);

/** Keeps the messages of a disconnected client: up to a number of bytes, then ends and answers without the output. */
export class ReplayBuffer {
  readonly #limitBytes: number;
  #frames: SharedFrame[] = [];
  readonly #place: ReturnType<HeldMemory["place"]>;
  #sizeBytes = 0;
  #isCut = false;

  constructor(limitBytes: number, place: ReturnType<HeldMemory["place"]>) {
    this.#limitBytes = limitBytes;
    this.#place = place;
  }

  /** False when not even answers fit any more: a replay would be useless. */
  add(frame: SharedFrame): boolean {
    const sizeBytes = frame.sizeBytes + FRAME_BYTES;
    const isOutput = OUTPUT.has(frame.frame.type);
    if (this.#sizeBytes + sizeBytes > this.#limitBytes && isOutput) {
      if (!this.#isCut) {
        this.#isCut = true;
        const text = `\n[output missing: more than ${this.#limitBytes} bytes while the client was away]\n`;
        const { session, parentHeader } = frame.frame;
        const content = { name: "stderr", text };
        this.#frames.push(syntheticFrame({ type: "stream", content, session, parentHeader }));
      }
      return true;
    }
    this.#frames.push(frame);
    this.#sizeBytes += sizeBytes;
    this.#place.resize(this.#sizeBytes);
    return this.#sizeBytes <= 2 * this.#limitBytes;
  }

  take(): readonly SharedFrame[] {
    const frames = this.#frames;
    this.#frames = [];
    this.#sizeBytes = 0;
    this.#place.resize(0);
    this.#isCut = false;
    return frames;
  }
}

// Overhead of a message, so that empty ones are bounded, too.
const FRAME_BYTES = 512;
