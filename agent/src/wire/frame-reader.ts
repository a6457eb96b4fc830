import { type Frame, HEADER_BYTES, PAYLOAD_LIMIT, ProtocolError } from "./frames.js";

/** A frame whose payload is not whole yet. */
interface OpenFrame extends Frame {
  filledBytes: number;
}

/**
 * Cuts a stream of bytes into frames. Payloads are copies, and those of some size have their memory to themselves: the
 * chunks can be given back at once, and so can each payload when it is used.
 */
export class FrameReader {
  /** As much as has come of the header of the next frame. */
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerBytes = 0;
  #open: OpenFrame | undefined;

  /**
   * What this chunk completes. The chunk is read no more once that was taken to its end.
   * @throws ProtocolError for a length that no frame may have; nothing can be read after that.
   */
  *push(chunk: Buffer): Generator<Frame, undefined> {
    for (let at = 0; at < chunk.byteLength;) {
      if (this.#open === undefined) {
        const taken = chunk.copy(this.#header, this.#headerBytes, at);
        this.#headerBytes += taken;
        at += taken;
        this.#open = this.#begin();
        if (this.#open === undefined) return;
      }
      const { type, id, payload, filledBytes } = this.#open;
      const taken = chunk.copy(payload, filledBytes, at);
      this.#open.filledBytes += taken;
      at += taken;
      if (filledBytes + taken < payload.byteLength) return;
      this.#open = undefined;
      yield { type, id, payload };
    }
  }

  /** Undefined while the header is not whole. */
  #begin(): OpenFrame | undefined {
    if (this.#headerBytes < 4) return undefined;
    const restBytes = this.#header.readUInt32LE(0);
    if (restBytes < HEADER_BYTES - 4 || restBytes > PAYLOAD_LIMIT + HEADER_BYTES - 4) {
      throw new ProtocolError(`a frame of ${restBytes} bytes`);
    }
    if (this.#headerBytes < HEADER_BYTES) return undefined;
    this.#headerBytes = 0;
    return {
      type: this.#header.readUInt8(4),
      id: this.#header.readUInt32LE(5),
      // The system gives memory for what arrives, not for what was announced.
      payload: Buffer.allocUnsafe(restBytes - (HEADER_BYTES - 4)),
      filledBytes: 0,
    };
  }
}
