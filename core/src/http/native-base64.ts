/**
 * `Uint8Array.prototype.toBase64` for a Node that does not have it yet (24 and older). Protobuf's JSON
 * encodes every piece of output through it, and without it byte by byte in JavaScript, ten times slower.
 * Delete it when the oldest Node we run on has the real one.
 *
 * Import it before anything that imports protobuf, which looks for it once, when it is loaded.
 */
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

if (!("toBase64" in Uint8Array.prototype)) {
  Object.defineProperty(Uint8Array.prototype, "toBase64", {
    value: toBase64,
    writable: true,
    configurable: true,
  });
}
