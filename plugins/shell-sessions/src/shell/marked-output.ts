import { MARK_BYTE, NONCE_LENGTH } from "./driver.js";

export interface Mark {
  readonly nonce: string;
  /** One of MARKS. */
  readonly kind: string;
  readonly contents: Buffer;
}

interface MarkedOutputOptions {
  /** Decides whether a nonce is that of a mark. Anything else is output. */
  readonly isKnown: (nonce: string) => boolean;
  readonly onOutput: (data: Buffer) => void;
  readonly onMark: (mark: Mark) => void;
  readonly maxContents: number;
}

/** Mark byte, nonce, kind. */
const HEAD_LENGTH = 1 + NONCE_LENGTH + 1;
const NOTHING = Buffer.alloc(0);

/** Tells the marks of the driver from the output of commands around them, in one stream of bytes. */
export class MarkedOutput {
  readonly #options: MarkedOutputOptions;
  /** Bytes that may be the beginning of a mark. */
  #held: Buffer = NOTHING;
  /** The mark whose contents are being read. */
  #open:
    | { readonly nonce: string; readonly kind: string; readonly parts: Buffer[]; length: number }
    | undefined;

  constructor(options: MarkedOutputOptions) {
    this.#options = options;
  }

  /** @throws Error when the contents of a mark are too large. */
  feed(chunk: Uint8Array): void {
    let rest = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    if (this.#held.length > 0) rest = Buffer.concat([this.#held, rest]);
    this.#held = NOTHING;
    while (rest.length > 0) rest = this.#open === undefined ? this.#output(rest) : this.#contents(rest);
  }

  /** Passes on what was held, at the end of the stream. */
  end(): void {
    if (this.#held.length > 0) this.#options.onOutput(this.#held);
    this.#held = NOTHING;
  }

  /** @returns the bytes behind the next mark's head. */
  #output(bytes: Buffer): Buffer {
    for (let at = bytes.indexOf(MARK_BYTE); at >= 0; at = markByteAt(bytes, at + 1)) {
      const digits = digitsAt(bytes, at + 1);
      // Before any text is made: a command can write as many of these bytes as it likes.
      if (digits < NONCE_LENGTH && at + 1 + digits < bytes.length) continue;
      const isWhole = bytes.length - at >= HEAD_LENGTH;
      const nonce = bytes.toString("latin1", at + 1, at + 1 + NONCE_LENGTH);
      if (isWhole && !this.#options.isKnown(nonce)) continue;
      if (at > 0) this.#options.onOutput(bytes.subarray(0, at));
      if (!isWhole) {
        this.#held = bytes.subarray(at);
        return NOTHING;
      }
      const kind = bytes.toString("latin1", at + HEAD_LENGTH - 1, at + HEAD_LENGTH);
      this.#open = { nonce, kind, parts: [], length: 0 };
      return bytes.subarray(at + HEAD_LENGTH);
    }
    this.#options.onOutput(bytes);
    return NOTHING;
  }

  /** @returns the bytes behind the contents. */
  #contents(bytes: Buffer): Buffer {
    const open = this.#open;
    if (open === undefined) return bytes;
    const end = bytes.indexOf(0);
    const part = end < 0 ? bytes : bytes.subarray(0, end);
    open.parts.push(part);
    open.length += part.length;
    if (open.length > this.#options.maxContents) throw new Error("the state of a shell is too large");
    if (end < 0) return NOTHING;
    this.#open = undefined;
    this.#options.onMark({ nonce: open.nonce, kind: open.kind, contents: Buffer.concat(open.parts) });
    return bytes.subarray(end + 1);
  }
}

/** Count of the hexadecimal digits at a place, at most those of a nonce. */
function digitsAt(bytes: Buffer, start: number): number {
  let count = 0;
  for (; count < NONCE_LENGTH; count++) {
    const byte = bytes[start + count] ?? 0;
    const isDigit = (byte >= 0x30 && byte <= 0x39) || (byte >= 0x61 && byte <= 0x66);
    if (!isDigit) break;
  }
  return count;
}

/** As `indexOf`, whose calls take long beside a flood of these bytes. */
function markByteAt(bytes: Buffer, start: number): number {
  return bytes[start] === MARK_BYTE ? start : bytes.indexOf(MARK_BYTE, start);
}
