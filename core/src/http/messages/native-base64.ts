import { addon } from "./put-base64.js";

interface Base64Options {
  readonly alphabet?: "base64" | "base64url";
  readonly omitPadding?: boolean;
}

function toBase64(this: Uint8Array, options: Base64Options = {}): string {
  const bytes = Buffer.from(this.buffer, this.byteOffset, this.byteLength);
  const isUrl = options.alphabet === "base64url";
  if (isUrl && options.omitPadding === true) return bytes.toString("base64url");
  const text = bytes.toString("base64");
  const unpadded = options.omitPadding === true ? text.replace(/=+$/, "") : text;
  return isUrl ? unpadded.replaceAll("+", "-").replaceAll("/", "_") : unpadded;
}

/** @throws SyntaxError for other text. */
function setFromBase64(this: Uint8Array, text: string): { readonly read: number; readonly written: number } {
  const target = Buffer.from(this.buffer, this.byteOffset, this.byteLength);
  // Of a character of more bytes Node sees the last one.
  if (Buffer.byteLength(text) !== text.length) throw new SyntaxError("no base64");
  const written = target.write(text, "base64");
  // Node skips what is no digit, and writes less then. A regular expression takes five times as long.
  if (written === bytesOf(text)) return { read: text.length, written };
  const irregular = addon?.read(target, Buffer.from(text, "latin1")) ?? -1;
  // Protobuf tries it by itself then.
  if (irregular < 0) throw new SyntaxError("no base64");
  return { read: text.length, written: irregular };
}

/** The bytes of a text that is nothing but digits, and padding at its end. */
function bytesOf(text: string): number {
  let digits = text.length;
  for (let padding = 0; padding < 2 && text[digits - 1] === "="; padding += 1) digits -= 1;
  return digits % 4 === 1 ? NaN : Math.floor((digits * 3) / 4);
}

/**
 * `toBase64` and `setFromBase64` of `Uint8Array.prototype` for a Node that does not have them yet (24 and
 * older). Protobuf's JSON encodes every piece of output and decodes every piece of input through them, and
 * without them byte by byte in JavaScript, ten times slower.
 * Delete it when the oldest Node we run on has the real one.
 *
 * Import it before anything that imports protobuf, which looks for it once, when it is loaded.
 */
for (const method of [toBase64, setFromBase64]) {
  if (method.name in Uint8Array.prototype) continue;
  Object.defineProperty(Uint8Array.prototype, method.name, {
    value: method,
    writable: true,
    configurable: true,
  });
}
