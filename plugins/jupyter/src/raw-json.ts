/** A piece of JSON text exactly as it was written: `1.0` is not `1` here, and no digit of a big number is lost. */
export interface RawJson {
  /** UTF-8, checked to be one whole JSON value. */
  readonly bytes: Buffer;
  /** Nothing in it but printable ASCII: it may go into an ASCII line as it is. */
  readonly isPlain: boolean;
}

const DEEPEST = 512;
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

/**
 * The members of a JSON object, their values left unparsed. Of repeated names the last one counts.
 * @throws SyntaxError when the text is not one valid JSON object.
 */
export function membersOf(json: Buffer): ReadonlyMap<string, RawJson> {
  const scanner = new Scanner(json);
  const members = new Map<string, RawJson>();
  scanner.skipSpace();
  scanner.expect(Byte.OpenObject);
  scanner.skipSpace();
  if (scanner.peek() === Byte.CloseObject) scanner.at++;
  else {
    for (;;) {
      const name = scanner.string();
      scanner.skipSpace();
      scanner.expect(Byte.Colon);
      scanner.skipSpace();
      const value = scanner.value();
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

class Scanner {
  readonly #json: Buffer;
  at = 0;
  #isPlain = true;

  constructor(json: Buffer) {
    this.#json = json;
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
    for (;;) {
      const byte = this.#json[this.at];
      if (byte === 0x0a || byte === 0x0d || byte === 0x09) this.#isPlain = false;
      else if (byte !== 0x20) return;
      this.at++;
    }
  }

  string(): RawJson {
    return this.#piece(() => this.#skipString());
  }

  value(): RawJson {
    return this.#piece(() => this.#skipValue());
  }

  #piece(skip: () => void): RawJson {
    const start = this.at;
    this.#isPlain = true;
    skip();
    return { bytes: this.#json.subarray(start, this.at), isPlain: this.#isPlain };
  }

  // An explicit stack: the depth is the kernel's choice.
  #skipValue(): void {
    const open: number[] = [];
    for (;;) {
      const byte = this.#json[this.at];
      if (byte === Byte.OpenObject || byte === Byte.OpenList) {
        this.at++;
        this.skipSpace();
        const close = byte === Byte.OpenObject ? Byte.CloseObject : Byte.CloseList;
        if (this.#json[this.at] !== close) {
          if (open.length === DEEPEST) throw this.error();
          open.push(close);
          if (close === Byte.CloseObject) this.#skipName();
          continue;
        }
        this.at++;
      } else this.#skipScalar(byte);

      for (;;) {
        const close = open.at(-1);
        if (close === undefined) return;
        this.skipSpace();
        if (this.#json[this.at] === close) {
          this.at++;
          open.pop();
          continue;
        }
        this.expect(Byte.Comma);
        this.skipSpace();
        if (close === Byte.CloseObject) this.#skipName();
        break;
      }
    }
  }

  #skipName(): void {
    this.#skipString();
    this.skipSpace();
    this.expect(Byte.Colon);
    this.skipSpace();
  }

  #skipScalar(byte: number | undefined): void {
    if (byte === Byte.Quote) this.#skipString();
    else if (byte === Byte.Minus || isDigit(byte)) this.#skipNumber();
    else {
      const word = ["true", "false", "null"].find((known) =>
        this.#json.subarray(this.at, this.at + known.length).equals(Buffer.from(known)),
      );
      if (word === undefined) throw this.error();
      this.at += word.length;
    }
  }

  #skipString(): void {
    this.expect(Byte.Quote);
    const json = this.#json;
    let { at } = this;
    for (;;) {
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
    while (isDigit(this.#json[this.at])) this.at++;
  }
}

function isDigit(byte: number | undefined): boolean {
  return byte !== undefined && byte >= Byte.Zero && byte <= Byte.Nine;
}
