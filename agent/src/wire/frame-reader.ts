import { type Frame, HEADER_BYTES, PAYLOAD_LIMIT, ProtocolError } from "./frames.js";

/** A frame with an incomplete payload. */
interface OpenFrame extends Frame {
  filledBytes: number;
}

/**
 * Splits a stream of bytes into frames. Payloads are copies, and large ones have separate memory, so that chunks and
 * payloads can be freed independently.
 */
export class FrameReader {
  /** Received part of the next frame's header. */
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerBytes = 0;
  #open: OpenFrame | undefined;

  /**
   * Yields the frames that this chunk completes. The chunk is not read after the iteration.
   * @throws ProtocolError for an invalid length; the reader is unusable after that.
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

  /** Undefined while the header is incomplete. */
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
      // The system commits memory only for bytes that arrive, not for the announced length.
      payload: Buffer.allocUnsafe(restBytes - (HEADER_BYTES - 4)),
      filledBytes: 0,
    };
  }
}
