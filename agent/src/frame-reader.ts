import { type Frame, HEADER_BYTES, PAYLOAD_LIMIT, ProtocolError } from "./frames.js";

/** Cuts a stream of bytes into frames. A frame that lies within one chunk is not copied. */
export class FrameReader {
  /** The beginning of a frame whose length is not known yet. */
  #head: Buffer = Buffer.alloc(0);
  /** A frame of which a part is still to come. */
  #frame: Buffer | undefined;
  #received = 0;

  /** @throws ProtocolError for a length that no frame may have; nothing can be read after that. */
  *push(chunk: Buffer): Generator<Frame, undefined> {
    let rest = chunk;
    while (rest.byteLength > 0) {
      if (this.#frame !== undefined) {
        const taken = rest.copy(this.#frame, this.#received);
        this.#received += taken;
        rest = rest.subarray(taken);
        if (this.#received < this.#frame.byteLength) return;
        yield frameOf(this.#frame);
        this.#frame = undefined;
        continue;
      }
      if (this.#head.byteLength > 0) {
        rest = Buffer.concat([this.#head, rest]);
        this.#head = Buffer.alloc(0);
      }
      if (rest.byteLength < 4) {
        this.#head = Buffer.from(rest);
        return;
      }
      const length = frameLength(rest);
      if (rest.byteLength >= length) {
        yield frameOf(rest.subarray(0, length));
        rest = rest.subarray(length);
      } else {
        this.#frame = Buffer.allocUnsafeSlow(length);
        this.#received = 0;
      }
    }
  }
}

function frameLength(bytes: Buffer): number {
  const rest = bytes.readUInt32LE(0);
  if (rest < HEADER_BYTES - 4 || rest > PAYLOAD_LIMIT + HEADER_BYTES - 4) {
    throw new ProtocolError(`a frame of ${rest} bytes`);
  }
  return rest + 4;
}

function frameOf(bytes: Buffer): Frame {
  return { type: bytes.readUInt8(4), id: bytes.readUInt32LE(5), payload: bytes.subarray(HEADER_BYTES) };
}
