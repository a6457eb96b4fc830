import { type Frame, HEADER_BYTES, PAYLOAD_LIMIT, ProtocolError } from "./frames.js";

/** What has arrived of a payload is worth handing out from here on; less is gathered, so that parts stay few. */
const LEAST_PART_BYTES = 8_192;

/** A frame of which a part is still to come. */
interface OpenFrame {
  readonly type: number;
  readonly id: number;
  missingBytes: number;
  /** All that is missing, once a part of it was too small. */
  gathered: Buffer | undefined;
}

/** Cuts a stream of bytes into frames. What is handed out are views of its chunks, as far as that goes. */
export class FrameReader {
  readonly #isDivisible: (type: number) => boolean;
  /** The beginning of a frame whose header is not whole. */
  #head: Buffer = Buffer.alloc(0);
  #open: OpenFrame | undefined;

  /** @param isDivisible whether frames of a type may be handed out in parts; none when absent. */
  constructor(isDivisible: (type: number) => boolean = () => false) {
    this.#isDivisible = isDivisible;
  }

  /** @throws ProtocolError for a length that no frame may have; nothing can be read after that. */
  *push(chunk: Buffer): Generator<Frame, undefined> {
    let rest = chunk;
    while (rest.byteLength > 0) {
      if (this.#open === undefined) {
        if (this.#head.byteLength > 0) rest = Buffer.concat([this.#head, rest]);
        const payloadBytes = payloadBytesOf(rest);
        if (payloadBytes === undefined) {
          this.#head = Buffer.from(rest);
          return;
        }
        this.#head = Buffer.alloc(0);
        const frame = { type: rest.readUInt8(4), id: rest.readUInt32LE(5) };
        rest = rest.subarray(HEADER_BYTES);
        if (payloadBytes === 0) yield { ...frame, payload: Buffer.alloc(0), restBytes: 0 };
        else this.#open = { ...frame, missingBytes: payloadBytes, gathered: undefined };
        continue;
      }
      const available = rest.subarray(0, this.#open.missingBytes);
      rest = rest.subarray(available.byteLength);
      const frame = this.#take(this.#open, available);
      if (frame !== undefined) yield frame;
    }
  }

  /** What can be handed out now that these bytes have come. */
  #take(open: OpenFrame, bytes: Buffer): Frame | undefined {
    const { type, id } = open;
    if (open.gathered === undefined && bytes.byteLength < open.missingBytes) {
      if (this.#isDivisible(type) && bytes.byteLength >= LEAST_PART_BYTES) {
        open.missingBytes -= bytes.byteLength;
        return { type, id, payload: bytes, restBytes: open.missingBytes };
      }
      open.gathered = Buffer.allocUnsafeSlow(open.missingBytes);
    }
    const payload = open.gathered ?? bytes;
    if (open.gathered !== undefined) bytes.copy(payload, payload.byteLength - open.missingBytes);
    open.missingBytes -= bytes.byteLength;
    if (open.missingBytes > 0) return undefined;
    this.#open = undefined;
    return { type, id, payload, restBytes: 0 };
  }
}

/** Undefined while the header is not whole. */
function payloadBytesOf(bytes: Buffer): number | undefined {
  if (bytes.byteLength < 4) return undefined;
  const rest = bytes.readUInt32LE(0);
  if (rest < HEADER_BYTES - 4 || rest > PAYLOAD_LIMIT + HEADER_BYTES - 4) {
    throw new ProtocolError(`a frame of ${rest} bytes`);
  }
  return bytes.byteLength < HEADER_BYTES ? undefined : rest - (HEADER_BYTES - 4);
}
