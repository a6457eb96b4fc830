import { setImmediate as nextTurn } from "node:timers/promises";

const DEEPEST = 512;
/** A member costs more than anything else of its length, and memory. */
const MOST_MEMBERS = 10_000;
/** Limit of consecutive white space or digits. */
const MAX_RUN = 64 * 1024;
/** Bytes that are scanned at once: about a millisecond. */
const SLICE_BYTES = 512 * 1024;
const SLICE_VALUES = 2048;
/** Length from which scanning four bytes at once pays. */
const WORTH_WORDS = 256;
const ESCAPED: ReadonlySet<number> = new Set(Buffer.from('"\\/bfnrt'));
const WORDS = ["true", "false", "null"].map((word) => Buffer.from(word));
const NO_WORDS = new Int32Array(0);

const enum Byte {
  Quote = 0x22,
  Plus = 0x2b,
  Comma = 0x2c,
  Minus = 0x2d,
  Dot = 0x2e,
  Zero = 0x30,
  Nine = 0x39,
  Colon = 0x3a,
  UpperE = 0x45,
  OpenList = 0x5b,
  Backslash = 0x5c,
  CloseList = 0x5d,
  LowerE = 0x65,
  LowerU = 0x75,
  OpenObject = 0x7b,
  CloseObject = 0x7d,
}

/**
 * The members of a JSON object, unparsed: `1.0` stays `1.0`, and big numbers keep all digits. The last of a name counts.
 * @throws SyntaxError for anything but one whole JSON object.
 */
export function membersOf(json: Buffer): ReadonlyMap<string, Buffer> {
  const scan = scanMembers(json);
  for (;;) {
    const { done, value } = scan.next();
    if (done === true) return value;
  }
}

/** Like `membersOf`, but yields to the event loop during a long text, and rejects in place of throwing. */
export async function membersOfLong(json: Buffer): Promise<ReadonlyMap<string, Buffer>> {
  const scan = scanMembers(json);
  for (;;) {
    const { done, value } = scan.next();
    if (done === true) return value;
    await nextTurn();
  }
}

/** Yields after each slice. */
function* scanMembers(json: Buffer): Generator<void, ReadonlyMap<string, Buffer>> {
  const scanner = new Scanner(json);
  const members = new Map<string, Buffer>();
  /** The closing brackets of what is open. An explicit stack: the kernel chooses the depth. */
  const open: number[] = [];
  let innermost: number | undefined;
  let name = "";
  let start = 0;
  let sliceEnd = SLICE_BYTES;
  let values = 0;
  scanner.skipSpace();
  if (scanner.peek() !== Byte.OpenObject) throw scanner.error();
  for (;;) {
    if (innermost === Byte.CloseObject) {
      const nameAt = scanner.at;
      scanner.expect(Byte.Quote);
      while (!scanner.skipText(scanner.at + SLICE_BYTES)) yield;
      if (open.length === 1) name = JSON.parse(json.toString("utf8", nameAt, scanner.at)) as string;
      scanner.skipSpace();
      scanner.expect(Byte.Colon);
      scanner.skipSpace();
    }
    if (open.length === 1) start = scanner.at;
    const byte = scanner.peek();
    if (byte === Byte.OpenObject || byte === Byte.OpenList) {
      const close = byte === Byte.OpenObject ? Byte.CloseObject : Byte.CloseList;
      scanner.at++;
      scanner.skipSpace();
      if (scanner.peek() !== close) {
        if (open.length > DEEPEST) throw scanner.error();
        open.push(close);
        innermost = close;
        continue;
      }
      scanner.at++;
    } else if (byte === Byte.Quote) {
      scanner.at++;
      while (!scanner.skipText(scanner.at + SLICE_BYTES)) yield;
    } else scanner.skipNumberOrWord();
    // Past the brackets that close after this value.
    for (;;) {
      if (open.length === 1) members.set(name, json.subarray(start, scanner.at));
      if (members.size > MOST_MEMBERS) throw scanner.error();
      scanner.skipSpace();
      if (open.length === 0) {
        if (scanner.at !== json.length) throw scanner.error();
        return members;
      }
      if (scanner.peek() !== innermost) break;
      scanner.at++;
      open.pop();
      innermost = open.at(-1);
    }
    scanner.expect(Byte.Comma);
    scanner.skipSpace();
    values += 1;
    if (scanner.at >= sliceEnd || values % SLICE_VALUES === 0) {
      yield;
      sliceEnd = scanner.at + SLICE_BYTES;
    }
  }
}

class Scanner {
  readonly #json: Buffer;
  /** The same bytes as 32-bit words, from the first aligned one. */
  readonly #words: Int32Array;
  readonly #firstWordAt: number;
  at = 0;

  constructor(json: Buffer) {
    this.#json = json;
    this.#firstWordAt = -json.byteOffset & 3;
    const words = json.length < WORTH_WORDS ? 0 : (json.length - this.#firstWordAt) >> 2;
    this.#words =
      words === 0 ? NO_WORDS : new Int32Array(json.buffer, json.byteOffset + this.#firstWordAt, words);
  }

  peek(): number | undefined {
    return this.#json[this.at];
  }

  expect(byte: number): void {
    if (this.#json[this.at] !== byte) throw this.error();
    this.at++;
  }

  error(): SyntaxError {
    return new SyntaxError(`unexpected JSON at byte ${this.at}`);
  }

  skipSpace(): void {
    for (const end = this.at + MAX_RUN; ; this.at++) {
      const byte = this.#json[this.at];
      if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return;
      if (this.at === end) throw this.error();
    }
  }

  skipNumberOrWord(): void {
    const byte = this.#json[this.at];
    if (byte === Byte.Minus || isDigit(byte)) {
      this.#skipNumber();
      return;
    }
    const word = WORDS.find((known) => this.#json.subarray(this.at, this.at + known.length).equals(known));
    if (word === undefined) throw this.error();
    this.at += word.length;
  }

  /** Scans the rest of a string: past its end (true), or about as far as `until`. */
  skipText(until: number): boolean {
    const json = this.#json;
    const firstWordAt = this.#firstWordAt;
    const words = this.#words;
    const endWord = Math.min(words.length, (until - firstWordAt + 3) >> 2);
    let { at } = this;
    for (;;) {
      if (((at - firstWordAt) & 3) === 0) {
        let index = (at - firstWordAt) >> 2;
        while (index < endWord && isText(words[index] as number)) index++;
        at = Math.max(at, firstWordAt + 4 * index);
        if (at >= until) {
          this.at = at;
          return false;
        }
      }
      const byte = json[at];
      if (byte === Byte.Quote) break;
      if (byte === undefined || byte < 0x20) {
        this.at = at;
        throw this.error();
      }
      at = byte === Byte.Backslash ? this.#skipEscape(at) : at + 1;
    }
    this.at = at + 1;
    return true;
  }

  #skipEscape(at: number): number {
    const letter = this.#json[at + 1];
    if (letter === Byte.LowerU) {
      if (/^[0-9a-fA-F]{4}$/.test(this.#json.toString("latin1", at + 2, at + 6))) return at + 6;
    } else if (letter !== undefined && ESCAPED.has(letter)) return at + 2;
    this.at = at;
    throw this.error();
  }

  #skipNumber(): void {
    if (this.#json[this.at] === Byte.Minus) this.at++;
    if (this.#json[this.at] === Byte.Zero) this.at++;
    else this.#skipDigits();
    if (this.#json[this.at] === Byte.Dot) {
      this.at++;
      this.#skipDigits();
    }
    const exponent = this.#json[this.at];
    if (exponent === Byte.LowerE || exponent === Byte.UpperE) {
      this.at++;
      const sign = this.#json[this.at];
      if (sign === Byte.Plus || sign === Byte.Minus) this.at++;
      this.#skipDigits();
    }
  }

  #skipDigits(): void {
    if (!isDigit(this.#json[this.at])) throw this.error();
    for (const end = this.at + MAX_RUN; isDigit(this.#json[this.at]); this.at++) {
      if (this.at === end) throw this.error();
    }
  }
}

function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= Byte.Zero && byte <= Byte.Nine;
}

/** True when no byte of a word is a quote, a backslash or below 0x20. It may be false for others, too. */
function isText(word: number): boolean {
  // Each difference sets the high bit of such a byte, and perhaps that of the byte above it.
  const marks = ((word ^ 0x22222222) - 0x01010101) | ((word ^ 0x5c5c5c5c) - 0x01010101) | (word - 0x20202020);
  return (marks & ~word & 0x80808080) === 0;
}
