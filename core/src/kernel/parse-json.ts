const [QUOTE, BACKSLASH, COMMA, BRACKET, BRACE] = Buffer.from('"\\,[{');

/** Values of a client's message: the parsing of so many holds up the event loop for some milliseconds. */
export const MOST_VALUES = 5_000;

/** JSON that has more values than its reader takes. */
export class TooManyValues extends Error {
  override readonly name = "TooManyValues";
}

/** Counts the values of JSON that comes in pieces. */
export class ValueCount {
  readonly #most: number;
  #values = 0;
  #isInString = false;
  #isEscaped = false;

  /** @param most about as many as the arrays and objects may have together. */
  constructor(most: number) {
    this.#most = most;
  }

  /** @throws TooManyValues */
  add(json: Uint8Array): void {
    let values = this.#values;
    let isInString = this.#isInString;
    let at = this.#isEscaped ? 1 : 0;
    for (; at < json.length; at += 1) {
      const byte = json[at];
      if (isInString) {
        if (byte === BACKSLASH) at += 1;
        else if (byte === QUOTE) isInString = false;
      } else if (byte === QUOTE) isInString = true;
      else if (byte === COMMA || byte === BRACKET || byte === BRACE) {
        values += 1;
        if (values > this.#most) throw new TooManyValues(`it has more than ${this.#most} values`);
      }
    }
    this.#values = values;
    this.#isInString = isInString;
    // The byte behind a backslash may be in the next piece, which may be empty.
    this.#isEscaped = at > json.length;
  }
}

/**
 * Parses JSON that may be hostile: a megabyte of small objects would hold up the event loop for a fifth of a second.
 * @param mostValues about as many as its arrays and objects may have together.
 * @throws TooManyValues, SyntaxError
 */
export function parseJson(json: Uint8Array, mostValues = MOST_VALUES): unknown {
  new ValueCount(mostValues).add(json);
  return JSON.parse(Buffer.from(json.buffer, json.byteOffset, json.byteLength).toString());
}
