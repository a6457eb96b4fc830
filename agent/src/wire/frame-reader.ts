import { type Frame, HEADER_BYTES, PAYLOAD_LIMIT, ProtocolError } from "./frames.js";

interface OpenFrame extends Frame {
  filledBytes: number;
}

/** A missing part of a payload that is worth a read of its own. */
const LARGE_BYTES = 16 * 1024;
/** For the header of the frame after a large one, whose payload is then read to its place. Used up at once. */
const HEADERS = Buffer.allocUnsafeSlow(1024);

/**
 * Splits a stream of bytes into frames. Payloads are copies, and large ones have separate memory, so that chunks and
 * payloads can be freed independently.
 */
export class FrameReader {
  readonly #header = Buffer.alloc(HEADER_BYTES);
  #headerBytes = 0;
  #open: OpenFrame | undefined;
  #wasLarge = false;
  /** True while the next chunk is a part of the open payload. */
  #isInPlace = false;
  /** Bytes of the chunk that were taken. */
  #at = 0;

  /**
   * Tells where the next bytes should be read to, and expects them there. Copying large payloads would take a third
   * of the time that it takes to read them.
   */
  destination(): Buffer | undefined {
    const open = this.#open;
    this.#isInPlace = open !== undefined && open.payload.byteLength - open.filledBytes >= LARGE_BYTES;
    if (this.#isInPlace) return open?.payload.subarray(open.filledBytes);
    return open === undefined && this.#wasLarge ? HEADERS : undefined;
  }

  /**
   * Yields the frames that this chunk completes. The chunk is not read after the iteration; who stops early pushes
   * `unread` later.
   * @throws ProtocolError for an invalid length; the reader is unusable after that.
   */
  *push(chunk: Buffer): Generator<Frame, undefined> {
    this.#at = 0;
    while (this.#at < chunk.byteLength) {
      if (this.#open === undefined) {
        const taken = chunk.copy(this.#header, this.#headerBytes, this.#at);
        this.#headerBytes += taken;
        this.#at += taken;
        this.#open = this.#begin();
        if (this.#open === undefined) return;
      }
      const { type, id, payload, filledBytes } = this.#open;
      const taken = this.#isInPlace ? chunk.byteLength : chunk.copy(payload, filledBytes, this.#at);
      this.#isInPlace = false;
      this.#open.filledBytes += taken;
      this.#at += taken;
      if (filledBytes + taken < payload.byteLength) return;
      this.#open = undefined;
      this.#wasLarge = payload.byteLength >= LARGE_BYTES;
      yield { type, id, payload };
    }
  }

  /** The part of a chunk behind the last frame that it yielded. */
  unread(chunk: Buffer): Buffer {
    return chunk.subarray(this.#at);
  }

  #begin(): OpenFrame | undefined {
    if (this.#headerBytes < 4) return undefined;
    const restBytes = this.#header.readUInt32LE(0);
    if (restBytes < HEADER_BYTES - 4 || restBytes > PAYLOAD_LIMIT + HEADER_BYTES - 4)
      throw new ProtocolError(`a frame of ${restBytes} bytes`);
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
