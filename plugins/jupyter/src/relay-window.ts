import { setImmediate as nextTurn } from "node:timers/promises";

/** What the receiving end of a relay may hold, beside the message that is under way. */
const AHEAD_BYTES = 1024 * 1024;
const LONGEST_SHORT_FRAME = 255;
const SHORT_HEADER_BYTES = 2;
const LONG_HEADER_BYTES = 9;

/**
 * How far a relay runs ahead of whoever reads messages at its end. ZeroMQ counts messages, of whatever size, and to
 * it no limit is the only one that never stops it in the middle; here bytes are counted, before it gets them.
 */
export class RelayWindow {
  #aheadBytes = 0;
  #isReading = false;
  #taken = 0;
  #changed = Promise.withResolvers<void>();

  /** A connection was made: nothing of it has passed. */
  restart(): void {
    this.#aheadBytes = 0;
    this.#change();
  }

  /** Resolves when more may pass: there is room, or the reader waits and nothing that it could have has arrived. */
  async room(): Promise<void> {
    while (this.#aheadBytes > AHEAD_BYTES) {
      if (this.#isReading) {
        const taken = this.#taken;
        await nextTurn();
        // A message larger than the window is under way.
        if (this.#isReading && this.#taken === taken) return;
      } else await this.#changed.promise;
    }
  }

  passed(bytes: number): void {
    this.#aheadBytes += bytes;
  }

  /** The reader waits for a message. */
  reading(): void {
    this.#isReading = true;
    this.#change();
  }

  /** The reader has one. */
  took(frames: readonly Buffer[]): void {
    this.#isReading = false;
    this.#taken++;
    let bytes = 0;
    for (const { length } of frames)
      bytes += length + (length > LONGEST_SHORT_FRAME ? LONG_HEADER_BYTES : SHORT_HEADER_BYTES);
    // It may be left from an earlier connection.
    this.#aheadBytes = Math.max(0, this.#aheadBytes - bytes);
    this.#change();
  }

  #change(): void {
    if (this.#aheadBytes > AHEAD_BYTES && !this.#isReading) return;
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }
}
