import { isAscii } from "node:buffer";

// The JS SDK decodes each chunk separately and loses a character that is split between two; the Python SDK also ends a
// line at U+0085, U+2028 and U+2029. ASCII is safe in both.
const NOT_PLAIN = /[\u007f-\uffff]/g;

/** A value as JSON of printable ASCII on one line. */
export function asciiJson(value: unknown): string {
  return JSON.stringify(value).replace(NOT_PLAIN, escapeUnit);
}

function escapeUnit(unit: string): string {
  return `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
}

/** Bytes converted at once: a few milliseconds when none of them is ASCII. */
const PIECE_BYTES = 256 * 1024;

/** Like `asciiBytes`, in lazily made pieces. */
export function* asciiPieces(json: Buffer): Generator<Buffer> {
  for (let start = 0; start < json.length;) {
    const end = characterEnd(json, start + PIECE_BYTES);
    yield asciiBytes(json.subarray(start, end));
    start = end;
  }
}

/** The last position up to `at` that is not within a character; in invalid UTF-8 it may be. */
export function characterEnd(bytes: Buffer, at: number): number {
  let end = Math.min(at, bytes.length);
  for (let back = 0; back < 3 && ((bytes[end] ?? 0) & 0xc0) === 0x80; back++) end--;
  return end;
}

const NOT_PRINTABLE = Buffer.from("\t\n\r\u007f");
const HEX = Buffer.from("0123456789abcdef", "latin1");

/** True for JSON that is printable ASCII on one line already: its other control characters are escaped. */
export function isPlain(json: Buffer): boolean {
  return isAscii(json) && !NOT_PRINTABLE.some((byte) => json.includes(byte));
}

/** JSON as printable ASCII on one line, its value unchanged: not copied if it is already. Invalid UTF-8 becomes U+FFFD. */
export function asciiBytes(json: Buffer): Buffer {
  if (isPlain(json)) return json;
  const text = json.toString("utf8");
  let size = text.length;
  for (let index = 0; index < text.length; index++) if (text.charCodeAt(index) >= 0x7f) size += 5;
  const out = Buffer.allocUnsafe(size);
  let at = 0;
  // By hand, because a replace with a callback takes tens of milliseconds for a megabyte of emoji.
  for (let index = 0; index < text.length; index++) {
    const unit = text.charCodeAt(index);
    if (unit >= 0x7f) {
      out[at++] = 0x5c;
      out[at++] = 0x75;
      for (let shift = 12; shift >= 0; shift -= 4) out[at++] = HEX[(unit >> shift) & 15] as number;
    } else {
      // Inside a string a control byte would be invalid JSON: this one is white space between tokens.
      out[at++] = unit < 0x20 ? 0x20 : unit;
    }
  }
  return out;
}

/** The value of a JSON text; undefined for other text. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
