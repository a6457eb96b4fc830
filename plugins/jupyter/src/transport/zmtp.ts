export type ZmtpEvent =
  | { readonly kind: "greeting" }
  | { readonly kind: "command"; readonly name: string; readonly body: Buffer }
  | { readonly kind: "message"; readonly frames: readonly Buffer[] };

interface ZmtpReaderOptions {
  /** Limit of all frames of one message together. */
  readonly maxMessageBytes: number;
}

/** Reason why bytes are no valid ZMTP; the connection is useless then. */
export class ZmtpError extends Error {
  override readonly name = "ZmtpError";
}

const GREETING_BYTES = 64;
const SIGNATURE_START = 0xff;
const SIGNATURE_END = 0x7f;
const SIGNATURE_END_AT = 9;
const VERSION_AT = 10;
const MECHANISM_AT = 12;
const MECHANISM = Buffer.from("NULL".padEnd(20, "\0"));
const AS_SERVER_AT = 32;

const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const LONG_HEADER_BYTES = 9;
/** A kernel sends seven, and its buffers. */
const MAX_FRAMES = 1024;
const MAX_COMMAND_BYTES = 4096;
/** Longer parts are not copied to be sent together with their neighbours. */
const WORTH_JOINING_BYTES = 64 * 1024;

/**
 * The greeting of a connection: version 3.0, no security. Later versions send subscriptions as commands, which some
 * kernels' libraries do not support.
 */
export function zmtpGreeting(): Buffer {
  const greeting = Buffer.alloc(GREETING_BYTES);
  greeting[0] = SIGNATURE_START;
  greeting[SIGNATURE_END_AT] = SIGNATURE_END;
  greeting[VERSION_AT] = 3;
  MECHANISM.copy(greeting, MECHANISM_AT);
  return greeting;
}

/** The READY command, to be sent after the peer's greeting. */
export function zmtpReady(socketType: "DEALER" | "SUB", identity: string): Buffer {
  const properties = [property("Socket-Type", socketType)];
  if (identity !== "") properties.push(property("Identity", identity));
  return zmtpCommand("READY", Buffer.concat(properties));
}

export function zmtpCommand(name: string, body: Buffer): Buffer {
  const named = Buffer.concat([Buffer.from([name.length]), Buffer.from(name, "latin1"), body]);
  return Buffer.concat([frameHeader(COMMAND, named.length), named]);
}

/** Encodes a message in few pieces; long frames are not copied. */
export function zmtpMessage(frames: readonly Buffer[]): readonly Buffer[] {
  const pieces: Buffer[] = [];
  let short: Buffer[] = [];
  for (const [index, frame] of frames.entries()) {
    short.push(frameHeader(index < frames.length - 1 ? MORE : 0, frame.length));
    if (frame.length < WORTH_JOINING_BYTES) short.push(frame);
    else {
      pieces.push(Buffer.concat(short), frame);
      short = [];
    }
  }
  if (short.length > 0) pieces.push(Buffer.concat(short));
  return pieces;
}

function property(name: string, value: string): Buffer {
  const size = Buffer.alloc(4);
  size.writeUInt32BE(Buffer.byteLength(value));
  return Buffer.concat([Buffer.from([name.length]), Buffer.from(name, "latin1"), size, Buffer.from(value)]);
}

function frameHeader(flags: number, size: number): Buffer {
  if (size < 256) return Buffer.from([flags, size]);
  const header = Buffer.alloc(LONG_HEADER_BYTES);
  header[0] = flags | LONG;
  header.writeBigUInt64BE(BigInt(size), 1);
  return header;
}

/** Parses a peer's bytes, split in any way. Returned buffers are copies. */
export class ZmtpReader {
  readonly #maxMessageBytes: number;
  readonly #header = Buffer.alloc(GREETING_BYTES);
  #headerBytes = 0;
  #hasGreeted = false;
  #flags = 0;
  /** The frame that is being filled; undefined between frames. */
  #frame: Buffer | undefined;
  #frameBytes = 0;
  #frames: Buffer[] = [];
  #messageBytes = 0;

  constructor({ maxMessageBytes }: ZmtpReaderOptions) {
    this.#maxMessageBytes = maxMessageBytes;
  }

  /** Events that the next bytes complete, in order. Consume it before the next call. @throws ZmtpError for good. */
  *read(chunk: Buffer): Generator<ZmtpEvent, void, undefined> {
    for (let at = 0; at < chunk.length;) {
      if (this.#frame === undefined) {
        at += this.#fillHeader(chunk, at);
        if (this.#headerBytes < this.#headerNeeds()) return;
        if (this.#hasGreeted) this.#beginFrame();
        else {
          this.#checkGreeting();
          yield { kind: "greeting" };
          continue;
        }
      } else {
        const taken = chunk.copy(this.#frame, this.#frameBytes, at);
        at += taken;
        this.#frameBytes += taken;
      }
      if (this.#frame === undefined || this.#frameBytes < this.#frame.length) continue;
      const event = this.#endFrame(this.#frame);
      if (event !== undefined) yield event;
    }
  }

  #headerNeeds(): number {
    if (!this.#hasGreeted) return GREETING_BYTES;
    if (this.#headerBytes === 0) return 1;
    return ((this.#header[0] ?? 0) & LONG) === 0 ? 2 : LONG_HEADER_BYTES;
  }

  /** Reads as much as the chunk has; the first byte of a frame gives the length of its header. */
  #fillHeader(chunk: Buffer, start: number): number {
    let at = start;
    while (at < chunk.length && this.#headerBytes < this.#headerNeeds()) {
      const taken = chunk.copy(
        this.#header,
        this.#headerBytes,
        at,
        at + this.#headerNeeds() - this.#headerBytes,
      );
      at += taken;
      this.#headerBytes += taken;
    }
    return at - start;
  }

  #checkGreeting(): void {
    const greeting = this.#header;
    if (greeting[0] !== SIGNATURE_START || greeting[SIGNATURE_END_AT] !== SIGNATURE_END) {
      throw new ZmtpError("no greeting");
    }
    if ((greeting[VERSION_AT] ?? 0) < 3) throw new ZmtpError(`version ${greeting[VERSION_AT]}`);
    if (!greeting.subarray(MECHANISM_AT, AS_SERVER_AT).equals(MECHANISM)) {
      throw new ZmtpError("a security mechanism");
    }
    this.#hasGreeted = true;
    this.#headerBytes = 0;
  }

  #beginFrame(): void {
    const header = this.#header;
    const flags = header[0] ?? 0;
    const size = (flags & LONG) === 0 ? (header[1] ?? 0) : Number(header.readBigUInt64BE(1));
    if (flags > (MORE | LONG | COMMAND)) throw new ZmtpError(`flags ${flags}`);
    if ((flags & COMMAND) === 0) {
      this.#messageBytes += size;
      if (this.#messageBytes > this.#maxMessageBytes) throw new ZmtpError("an oversized message");
      if (this.#frames.length === MAX_FRAMES) throw new ZmtpError("too many frames");
    } else if (size > MAX_COMMAND_BYTES || (flags & MORE) !== 0 || this.#frames.length > 0) {
      throw new ZmtpError("an unusable command");
    }
    this.#flags = flags;
    this.#headerBytes = 0;
    // The system provides memory only as data arrive, not for the announced size.
    this.#frame = Buffer.allocUnsafe(size);
    this.#frameBytes = 0;
  }

  #endFrame(frame: Buffer): ZmtpEvent | undefined {
    this.#frame = undefined;
    if ((this.#flags & COMMAND) !== 0) return commandIn(frame);
    this.#frames.push(frame);
    if ((this.#flags & MORE) !== 0) return undefined;
    const frames = this.#frames;
    this.#frames = [];
    this.#messageBytes = 0;
    return { kind: "message", frames };
  }
}

function commandIn(frame: Buffer): ZmtpEvent {
  const end = 1 + (frame[0] ?? 0);
  if (frame.length < end || end === 1) throw new ZmtpError("a command without a name");
  return { kind: "command", name: frame.toString("latin1", 1, end), body: frame.subarray(end) };
}
