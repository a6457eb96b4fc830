export type ZmtpEvent =
  | { readonly kind: "greeting" }
  | { readonly kind: "command"; readonly name: string; readonly body: Buffer }
  | { readonly kind: "message"; readonly frames: readonly Buffer[] };

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

interface ZmtpReaderOptions {
  readonly maxMessageBytes: number;
  readonly drop?: (bytes: Buffer) => void;
}

/** Parses a peer's bytes, split in any way. Returned buffers are copies. */
export class ZmtpReader {
  readonly #maxMessageBytes: number;
  readonly #drop: (bytes: Buffer) => void;
  readonly #events = this.#parse();
  #chunk: Buffer = Buffer.alloc(0);
  #at = 0;
  #openBytes = 0;

  /** @param options `maxMessageBytes`: limit of all frames of one message together. `drop` frees memory. */
  constructor({ maxMessageBytes, drop = () => undefined }: ZmtpReaderOptions) {
    this.#maxMessageBytes = maxMessageBytes;
    this.#drop = drop;
  }

  /** Bytes of the message that is not complete yet, as far as they have arrived. */
  get openBytes(): number {
    return this.#openBytes;
  }

  /** Events that the next bytes complete, in order. Consume it before the next call. @throws ZmtpError for good. */
  *read(chunk: Buffer): Generator<ZmtpEvent, void, undefined> {
    this.#chunk = chunk;
    this.#at = 0;
    for (let { value } = this.#events.next(); value !== undefined; { value } = this.#events.next())
      yield value;
  }

  /** Frees the message that is not complete yet. No bytes follow. */
  end(): void {
    this.#events.return(undefined);
  }

  /** Yields undefined where it needs the next chunk. */
  *#parse(): Generator<ZmtpEvent | undefined, undefined> {
    checkGreeting(yield* this.#take(GREETING_BYTES));
    this.#openBytes = 0;
    yield { kind: "greeting" };
    for (;;) yield* this.#message();
  }

  *#message(): Generator<ZmtpEvent | undefined, void> {
    let frames: Buffer[] = [];
    let messageBytes = 0;
    try {
      for (let isMore = true; isMore;) {
        const [flags = 0] = yield* this.#take(1);
        const header = yield* this.#take((flags & LONG) === 0 ? 1 : 8);
        const size = (flags & LONG) === 0 ? header.readUInt8() : Number(header.readBigUInt64BE());
        if (flags > (MORE | LONG | COMMAND)) throw new ZmtpError(`flags ${flags}`);
        if ((flags & COMMAND) !== 0) {
          if (size > MAX_COMMAND_BYTES || (flags & MORE) !== 0 || frames.length > 0)
            throw new ZmtpError("an unusable command");
          const command = commandIn(yield* this.#take(size));
          this.#openBytes = 0;
          yield command;
          return;
        }
        messageBytes += size;
        if (messageBytes > this.#maxMessageBytes) throw new ZmtpError("an oversized message");
        if (frames.length === MAX_FRAMES) throw new ZmtpError("too many frames");
        frames.push(yield* this.#take(size));
        isMore = (flags & MORE) !== 0;
      }
      const whole = frames;
      // Its reader's from here on.
      frames = [];
      this.#openBytes = 0;
      yield { kind: "message", frames: whole };
    } finally {
      for (const frame of frames) this.#drop(frame);
    }
  }

  *#take(size: number): Generator<undefined, Buffer> {
    // The system provides memory only as data arrive, not for the announced size.
    const bytes = Buffer.allocUnsafe(size);
    let filled = 0;
    try {
      while (filled < size) {
        if (this.#at === this.#chunk.length) yield undefined;
        const taken = this.#chunk.copy(bytes, filled, this.#at);
        filled += taken;
        this.#openBytes += taken;
        this.#at += taken;
      }
      return bytes;
    } finally {
      if (filled < size) this.#drop(bytes);
    }
  }
}

function checkGreeting(greeting: Buffer): void {
  if (greeting[0] !== SIGNATURE_START || greeting[SIGNATURE_END_AT] !== SIGNATURE_END) {
    throw new ZmtpError("no greeting");
  }
  if ((greeting[VERSION_AT] ?? 0) < 3) throw new ZmtpError(`version ${greeting[VERSION_AT]}`);
  if (!greeting.subarray(MECHANISM_AT, AS_SERVER_AT).equals(MECHANISM)) {
    throw new ZmtpError("a security mechanism");
  }
}

function commandIn(frame: Buffer): ZmtpEvent {
  const end = 1 + (frame[0] ?? 0);
  if (frame.length < end || end === 1) throw new ZmtpError("a command without a name");
  return { kind: "command", name: frame.toString("latin1", 1, end), body: frame.subarray(end) };
}
