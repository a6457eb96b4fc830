import { setImmediate as nextTurn } from "node:timers/promises";

/** A piece of JSON text as it was written: `1.0` stays `1.0`, and big numbers keep all digits. */
export interface RawJson {
  /** UTF-8, checked to be one whole JSON value. */
  readonly bytes: Buffer;
  /** True for printable ASCII, which may be copied into an ASCII line. */
  readonly isPlain: boolean;
}

const DEEPEST = 512;
/** Limit of consecutive white space or digits. */
const MAX_RUN = 64 * 1024;
/** Bytes that are scanned at once: about a millisecond. */
const SLICE_BYTES = 512 * 1024;
/** Length from which scanning four bytes at once pays. */
const WORTH_WORDS = 256;
const ESCAPED: ReadonlySet<number> = new Set(Buffer.from('"\\/bfnrt'));

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
  Delete = 0x7f,
}

/** The members of a JSON object, unparsed; the last of a name counts. @throws SyntaxError for anything else. */
export function membersOf(json: Buffer): ReadonlyMap<string, RawJson> {
  const scan = scanMembers(json);
  for (;;) {
    const { done, value } = scan.next();
    if (done === true) return value;
  }
}

/** Like `membersOf`, but yields to the event loop during a long text, and rejects in place of throwing. */
export async function membersOfLong(json: Buffer): Promise<ReadonlyMap<string, RawJson>> {
  const scan = scanMembers(json);
  for (;;) {
    const { done, value } = scan.next();
    if (done === true) return value;
    await nextTurn();
  }
}

/** Yields after each slice. */
function* scanMembers(json: Buffer): Generator<void, ReadonlyMap<string, RawJson>> {
  const scanner = new Scanner(json);
  const members = new Map<string, RawJson>();
  scanner.skipSpace();
  scanner.expect(Byte.OpenObject);
  scanner.skipSpace();
  if (scanner.peek() === Byte.CloseObject) scanner.at++;
  else {
    for (;;) {
      if (scanner.peek() !== Byte.Quote) throw scanner.error();
      const name = yield* scanner.value();
      scanner.skipSpace();
      scanner.expect(Byte.Colon);
      scanner.skipSpace();
      const value = yield* scanner.value();
      members.set(JSON.parse(name.bytes.toString("utf8")) as string, value);
      scanner.skipSpace();
      if (scanner.peek() === Byte.CloseObject) {
        scanner.at++;
        break;
      }
      scanner.expect(Byte.Comma);
      scanner.skipSpace();
    }
  }
  scanner.skipSpace();
  if (scanner.at !== json.length) throw scanner.error();
  return members;
}

/** Next token of an unfinished value. */
const enum Step {
  Value,
  Name,
  RestOfText,
  RestOfName,
  After,
}

class Scanner {
  readonly #json: Buffer;
  /** The same bytes as 32-bit words, from the first aligned one. */
  readonly #words: Int32Array;
  readonly #firstWordAt: number;
  at = 0;
  #isPlain = true;
  #step = Step.Value;
  // An explicit stack: the kernel chooses the depth.
  readonly #open: number[] = [];

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
      if (byte === 0x0a || byte === 0x0d || byte === 0x09) this.#isPlain = false;
      else if (byte !== 0x20) return;
      if (this.at === end) throw this.error();
    }
  }

  *value(): Generator<void, RawJson> {
    const start = this.at;
    this.#isPlain = true;
    this.#step = Step.Value;
    while (!this.#advance(this.at + SLICE_BYTES)) yield;
    return { bytes: this.#json.subarray(start, this.at), isPlain: this.#isPlain };
  }

  /** Scans the value. Returns true at its end, false when the scan stops at about `until`. */
  #advance(until: number): boolean {
    for (;;) {
      if (this.#step === Step.After) {
        if (!this.#goOnAfter()) return true;
      } else if (this.at >= until) return false;
      else if (this.#step === Step.Value) this.#enterValue();
      else if (this.#step === Step.Name) {
        this.expect(Byte.Quote);
        this.#step = Step.RestOfName;
      } else if (!this.#skipText(until)) return false;
      else if (this.#step === Step.RestOfText) this.#step = Step.After;
      else {
        this.skipSpace();
        this.expect(Byte.Colon);
        this.skipSpace();
        this.#step = Step.Value;
      }
    }
  }

  /** False when nothing is open any more. */
  #goOnAfter(): boolean {
    const close = this.#open.at(-1);
    if (close === undefined) return false;
    this.skipSpace();
    if (this.#json[this.at] === close) {
      this.at++;
      this.#open.pop();
    } else {
      this.expect(Byte.Comma);
      this.skipSpace();
      this.#step = close === Byte.CloseObject ? Step.Name : Step.Value;
    }
    return true;
  }

  #enterValue(): void {
    const byte = this.#json[this.at];
    if (byte === Byte.OpenObject || byte === Byte.OpenList) {
      this.at++;
      this.skipSpace();
      const close = byte === Byte.OpenObject ? Byte.CloseObject : Byte.CloseList;
      if (this.#json[this.at] === close) {
        this.at++;
        this.#step = Step.After;
        return;
      }
      if (this.#open.length === DEEPEST) throw this.error();
      this.#open.push(close);
      this.#step = close === Byte.CloseObject ? Step.Name : Step.Value;
    } else if (byte === Byte.Quote) {
      this.at++;
      this.#step = Step.RestOfText;
    } else {
      this.#skipNumberOrWord(byte);
      this.#step = Step.After;
    }
  }

  #skipNumberOrWord(byte: number | undefined): void {
    if (byte === Byte.Minus || isDigit(byte)) {
      this.#skipNumber();
      return;
    }
    const word = ["true", "false", "null"].find((known) =>
      this.#json.subarray(this.at, this.at + known.length).equals(Buffer.from(known)),
    );
    if (word === undefined) throw this.error();
    this.at += word.length;
  }

  /** Scans the rest of a string: past its end (true), or about as far as `until`. */
  #skipText(until: number): boolean {
    const json = this.#json;
    const firstWordAt = this.#firstWordAt;
    const words = this.#words;
    const endWord = Math.min(words.length, (until - firstWordAt + 3) >> 2);
    let { at } = this;
    for (;;) {
      if (((at - firstWordAt) & 3) === 0) {
        const index = (at - firstWordAt) >> 2;
        const next = this.#isPlain ? passPlain(words, index, endWord) : passText(words, index, endWord);
        at = Math.max(at, firstWordAt + 4 * next);
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
      if (byte === Byte.Backslash) {
        at = this.#skipEscape(at);
        continue;
      }
      if (byte >= Byte.Delete) this.#isPlain = false;
      at++;
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

const NO_WORDS = new Int32Array(0);

/** The first word with anything but printable ASCII that needs no escape in a string. */
function passPlain(words: Int32Array, start: number, end: number): number {
  let index = start;
  while (index < end && areText(plainMarks(words[index] as number))) index++;
  return index;
}

/** The first word with a quote, a backslash or a control byte. */
function passText(words: Int32Array, start: number, end: number): number {
  let index = start;
  while (index < end && areText(textMarks(words[index] as number))) index++;
  return index;
}

// The high bit of each byte marks a quote, a backslash or a byte below 0x20. It may also be set for the byte above such
// a one, which is then examined by itself.
function plainMarks(word: number): number {
  // Marks only 0x7f and bytes from 0x80 on, which have the high bit themselves: no masking needed.
  return (
    ((word ^ 0x22222222) - 0x01010101) |
    ((word ^ 0x5c5c5c5c) - 0x01010101) |
    (word - 0x20202020) |
    word |
    (word + 0x01010101)
  );
}

function textMarks(word: number): number {
  return (
    (((word ^ 0x22222222) - 0x01010101) | ((word ^ 0x5c5c5c5c) - 0x01010101) | (word - 0x20202020)) & ~word
  );
}

function areText(marks: number): boolean {
  return (marks & 0x80808080) === 0;
}
