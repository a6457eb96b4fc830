/**
 * `toBase64` and `setFromBase64` of `Uint8Array.prototype` for a Node that does not have them yet (24 and
 * older). Protobuf's JSON encodes every piece of output and decodes every piece of input through them, and
 * without them byte by byte in JavaScript, ten times slower.
 * Delete it when the oldest Node we run on has the real one.
 *
 * Import it before anything that imports protobuf, which looks for it once, when it is loaded.
 */
const PLAIN_BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

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

/** @throws SyntaxError for anything but plain padded base64; protobuf then decodes it itself. */
function setFromBase64(this: Uint8Array, text: string): { readonly read: number; readonly written: number } {
  // Buffer skips invalid characters instead of refusing them.
  if (text.length % 4 !== 0 || !PLAIN_BASE64.test(text)) throw new SyntaxError("no plain base64");
  const written = Buffer.from(this.buffer, this.byteOffset, this.byteLength).write(text, "base64");
  return { read: text.length, written };
}

for (const method of [toBase64, setFromBase64]) {
  if (method.name in Uint8Array.prototype) continue;
  Object.defineProperty(Uint8Array.prototype, method.name, {
    value: method,
    writable: true,
    configurable: true,
  });
}
