const [QUOTE, BACKSLASH, COMMA, BRACKET, BRACE] = Buffer.from('"\\,[{');

/** JSON that has more values than its reader takes. */
export class TooManyValues extends Error {
  override readonly name = "TooManyValues";
}

/**
 * Parses JSON that may be hostile: a megabyte of small objects would hold up the event loop for a fifth of a second.
 * @param mostValues about as many as its arrays and objects may have together.
 * @throws TooManyValues, SyntaxError
 */
export function parseJson(json: Uint8Array, mostValues: number): unknown {
  let values = 0;
  let isInString = false;
  for (let at = 0; at < json.length; at += 1) {
    const byte = json[at];
    if (isInString) {
      if (byte === BACKSLASH) at += 1;
      else if (byte === QUOTE) isInString = false;
    } else if (byte === QUOTE) isInString = true;
    else if (byte === COMMA || byte === BRACKET || byte === BRACE) {
      values += 1;
      if (values > mostValues) throw new TooManyValues(`it has more than ${mostValues} values`);
    }
  }
  return JSON.parse(Buffer.from(json.buffer, json.byteOffset, json.byteLength).toString());
}
