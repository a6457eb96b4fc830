import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The addon in `native`. */
interface Addon {
  /** @returns where the text ends in the target, or -1 when it does not fit. */
  write(target: Uint8Array, at: number, source: Uint8Array): number;
  /** @returns how many bytes of the text it wrote, or -1 when that is no base64 or does not fit. */
  read(target: Uint8Array, text: Uint8Array): number;
}

/** What set-up built in this checkout. */
const BUILT = fileURLToPath(new URL("../../../../.toolchain/agent", import.meta.url));

/** Undefined where it was not built, or is for another C library. */
const addon = loadAddon();

/** Writes bytes as base64 into a buffer. @returns where the text ends. @throws RangeError when it does not fit. */
export function putBase64(target: Buffer, at: number, bytes: Uint8Array): number {
  const end = (addon ?? plain).write(target, at, bytes);
  if (end < 0) throw new RangeError(`base64 of ${bytes.length} bytes does not fit`);
  return end;
}

const plain: Pick<Addon, "write"> = {
  write(target, at, source) {
    const text = Buffer.from(source.buffer, source.byteOffset, source.byteLength).toString("base64");
    if (at + text.length > target.length) return -1;
    return at + Buffer.from(target.buffer, target.byteOffset, target.byteLength).write(text, at, "latin1");
  },
};

function loadAddon(): Addon | undefined {
  const require = createRequire(import.meta.url);
  const packaged = (): string => `@coppice/agent-${process.platform}-${process.arch}/base64.node`;
  const built = (): string => join(BUILT, readFileSync(join(BUILT, "current"), "utf8").trim(), "base64.node");
  for (const find of [packaged, built]) {
    try {
      return require(find()) as Addon;
    } catch {
      // Not there, or for another C library.
    }
  }
  return undefined;
}

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
