import type { SandboxError } from "@coppice/core/backend";

export const MAGIC = 0x50_50_4f_43;
export const VERSION = 1;
export const Feature = { Share: 1 } as const;
/** Maximum of a payload, in both directions. */
export const PAYLOAD_LIMIT = 262_144;
/** Length, type and id of each frame. */
export const HEADER_BYTES = 9;
/** Credit that each frame of the agent costs beside its payload, so that many tiny frames are bounded, too. */
export const FRAME_COST = 64;
/** Bytes of unacknowledged input per object. */
export const INPUT_WINDOW_BYTES = 262_144;

/** Requests of the server, see docs/agent-protocol.md. */
export const Request = {
  Hello: 0x01,
  Processes: 0x02,
  Spawn: 0x03,
  Input: 0x04,
  InputEnd: 0x05,
  Credit: 0x06,
  Signal: 0x07,
  Resize: 0x08,
  Discard: 0x09,
  Release: 0x0a,
  End: 0x0b,
  Share: 0x0c,
  Account: 0x10,
  Stat: 0x20,
  List: 0x21,
  Open: 0x22,
  Read: 0x23,
  Write: 0x24,
  MakeDirectory: 0x25,
  Move: 0x26,
  Remove: 0x27,
  Change: 0x28,
  Watch: 0x30,
  Dial: 0x31,
} as const;

export const Reply = {
  Hello: 0x81,
  Process: 0x82,
  ProcessesEnd: 0x83,
  Started: 0x84,
  Error: 0x85,
  Output: 0x86,
  ErrorOutput: 0x87,
  OutputEnd: 0x88,
  Exit: 0x89,
  Taken: 0x8a,
  InputClosed: 0x8b,
  Signalled: 0x8c,
  Released: 0x8d,
  Shared: 0x8e,
  Account: 0x90,
  Info: 0xa0,
  Entries: 0xa1,
  Done: 0xa2,
  Changes: 0xb0,
} as const;

/** Step at which a request failed. */
export const Stage = {
  Request: 1,
  User: 2,
  Directory: 3,
  Resources: 4,
  Terminal: 5,
  Limits: 6,
  Credentials: 7,
  Execute: 8,
  File: 9,
  Parent: 10,
  Watch: 11,
  Dial: 12,
  Entry: 13,
} as const;

export interface Frame {
  readonly type: number;
  /** 0 is the connection itself. */
  readonly id: number;
  readonly payload: Buffer;
}

/** The other side violated the protocol. The connection is unusable. */
export class ProtocolError extends Error {
  override readonly name = "ProtocolError";
}

export class PayloadReader {
  readonly #bytes: Buffer;
  #position = 0;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  get isAtEnd(): boolean {
    return this.#position === this.#bytes.byteLength;
  }

  get leftBytes(): number {
    return this.#bytes.byteLength - this.#position;
  }

  u8(): number {
    return this.#bytes.readUInt8(this.#advance(1));
  }

  u16(): number {
    return this.#bytes.readUInt16LE(this.#advance(2));
  }

  u32(): number {
    return this.#bytes.readUInt32LE(this.#advance(4));
  }

  /** As a number; values beyond 2^53 are rounded. */
  u64(): number {
    return Number(this.#bytes.readBigUInt64LE(this.#advance(8)));
  }

  /** As `u64`, signed. */
  i64(): number {
    return Number(this.#bytes.readBigInt64LE(this.#advance(8)));
  }

  /** UTF-8 with a length prefix of two or four bytes. Malformed bytes become U+FFFD. */
  text(prefixBytes: 2 | 4 = 2): string {
    const length = prefixBytes === 2 ? this.u16() : this.u32();
    const start = this.#advance(length);
    return this.#bytes.toString("utf8", start, start + length);
  }

  skip(count: number): void {
    this.#advance(count);
  }

  rest(): Buffer {
    return this.#bytes.subarray(this.#advance(this.#bytes.byteLength - this.#position));
  }

  /** @throws ProtocolError when bytes are left. */
  end(): void {
    if (!this.isAtEnd) throw new ProtocolError("a frame is longer than its content");
  }

  #advance(count: number): number {
    const start = this.#position;
    if (count > this.#bytes.byteLength - start)
      throw new ProtocolError("a frame is shorter than its content");
    this.#position += count;
    return start;
  }
}

/** Reads a payload to its end. @throws ProtocolError */
export function readWhole<T>(payload: Buffer, read: (reader: PayloadReader) => T): T {
  const reader = new PayloadReader(payload);
  const value = read(reader);
  reader.end();
  return value;
}

export class PayloadWriter {
  #bytes = Buffer.allocUnsafe(256);
  #length = 0;

  u8(value: number): this {
    const at = this.#reserve(1);
    this.#bytes.writeUInt8(value, at);
    return this;
  }

  u16(value: number): this {
    return this.#integer(value, 2);
  }

  u32(value: number): this {
    return this.#integer(value, 4);
  }

  u64(value: bigint): this {
    const at = this.#reserve(8);
    this.#bytes.writeBigUInt64LE(value, at);
    return this;
  }

  /** UTF-8 with a length prefix of two or four bytes. @throws RangeError when the length does not fit. */
  text(value: string, prefixBytes: 2 | 4 = 2): this {
    const length = Buffer.byteLength(value);
    if (prefixBytes === 2) this.u16(length);
    else this.u32(length);
    const at = this.#reserve(length);
    this.#bytes.write(value, at, "utf8");
    return this;
  }

  bytes(value: Uint8Array): this {
    const at = this.#reserve(value.byteLength);
    this.#bytes.set(value, at);
    return this;
  }

  get byteLength(): number {
    return this.#length;
  }

  finish(): Buffer {
    return this.#bytes.subarray(0, this.#length);
  }

  // Buffer's own methods store into buffers of all kinds, which V8 does slowly: they took a twentieth of a start.
  #integer(value: number, bytes: 2 | 4): this {
    if (!Number.isInteger(value) || value < 0 || value >= 2 ** (8 * bytes))
      throw new RangeError(`${value} does not fit into ${bytes} bytes`);
    const at = this.#reserve(bytes);
    for (let index = 0; index < bytes; index += 1) this.#bytes[at + index] = value >>> (8 * index);
    return this;
  }

  /** Makes room. @returns where it begins. It may replace the buffer: read `#bytes` afterwards. */
  #reserve(count: number): number {
    const start = this.#length;
    if (start + count > this.#bytes.byteLength) {
      const larger = Buffer.allocUnsafe(Math.max(this.#bytes.byteLength * 2, start + count));
      this.#bytes.copy(larger, 0, 0, start);
      this.#bytes = larger;
    }
    this.#length += count;
    return start;
  }
}

export function frameHeader(type: number, id: number, payloadBytes: number): Buffer {
  const header = Buffer.allocUnsafe(HEADER_BYTES);
  header.writeUInt32LE(payloadBytes + HEADER_BYTES - 4, 0);
  header.writeUInt8(type, 4);
  header.writeUInt32LE(id, 5);
  return header;
}

/** One id of a connection, as its user sees it. */
export interface Link {
  readonly id: number;
  /** The same for all ids of the connection. */
  readonly connection: object;
  /** Does nothing after `release` or the end of the connection. */
  send(type: number, payload?: Uint8Array): void;
  /** Makes the agent forget the id; later frames for it are dropped. Safe to repeat. */
  release(): void;
  /** True when the agent may hand over descriptors. */
  readonly canShare: boolean;
  /** Takes over a descriptor of the agent. Undefined when the system does not allow it. The caller closes it. */
  takeDescriptor(descriptor: number): Promise<number | undefined>;
}

/** Receiver of the frames of one id. */
export interface Channel {
  /**
   * Takes a frame and may keep its payload.
   * @throws ProtocolError for an unexpected frame: the connection is closed.
   */
  receive(type: number, payload: Buffer): void;
  /**
   * The connection has ended. Called once, after all frames.
   * @param gone settles when the processes of the agent have ended, where this is known.
   */
  lost(reason: SandboxError, gone?: Promise<void>): void;
}
