import { posix } from "node:path";
import type { IncomingHttpHeaders } from "node:http";
import { lookup } from "mime-types";
import { SandboxError } from "@coppice/core";

const PREFIX = "x-metadata-";
/** Prefix of stored attribute names: it counts towards the kernel's limits. */
const ATTRIBUTE_PREFIX = "user.e2b.";
const MAX_KEY_BYTES = 246;
const MAX_TOTAL_BYTES = 4096;

/**
 * The metadata in the `X-Metadata-<key>` headers of an upload, keys in lower case.
 * @throws SandboxError invalid_argument `invalid metadata: …`
 */
export function parseMetadataHeaders(headers: IncomingHttpHeaders): Readonly<Record<string, string>> {
  const metadata: Record<string, string> = Object.create(null);
  let totalBytes = 0;
  for (const name of Object.keys(headers)) {
    if (!name.startsWith(PREFIX)) continue;
    const key = name.slice(PREFIX.length);
    const text = String(headers[name]);
    if (key === "") throw invalid("a key cannot be empty");
    if (key.length > MAX_KEY_BYTES)
      throw invalid(`a key is ${key.length} bytes long, the limit is ${MAX_KEY_BYTES}`);
    if (!/^[\x20-\x7e]*$/.test(text)) throw invalid(`the value of '${key}' is not printable ASCII`);
    totalBytes += ATTRIBUTE_PREFIX.length + key.length + text.length;
    metadata[key] = text;
  }
  if (totalBytes > MAX_TOTAL_BYTES)
    throw invalid(`keys and values take ${totalBytes} bytes, the limit is ${MAX_TOTAL_BYTES}`);
  return { ...metadata };
}

function invalid(reason: string): SandboxError {
  return new SandboxError("metadata_invalid", `invalid metadata: ${reason}`);
}

/** Number of bytes that `typeByContent` needs of a file with an unknown extension. */
export const SNIFF_BYTES = 512;

/** The type of a file's extension; undefined for an unknown one. */
export function typeByName(name: string): string | undefined {
  const type = lookup(posix.extname(name));
  if (type === false) return undefined;
  return type.startsWith("text/") ? `${type}; charset=utf-8` : type;
}

/** Text or bytes, by the first SNIFF_BYTES. Never HTML: a guess should not make a browser run it. */
export function typeByContent(start: Uint8Array): string {
  const isControl = (byte: number): boolean =>
    byte <= 0x08 || byte === 0x0b || (byte >= 0x0e && byte <= 0x1a) || (byte >= 0x1c && byte <= 0x1f);
  return start.some(isControl) ? "application/octet-stream" : "text/plain; charset=utf-8";
}

/** HTML, SVG and other XML, whose scripts a browser runs. */
const IS_PAGE = /html|xml/;

/**
 * Policy that gives a page of this type an opaque origin. A link's page comes from the server's own address, where its
 * scripts could do more than in a sandbox. Undefined for types without scripts.
 */
export function pagePolicy(type: string): string | undefined {
  return IS_PAGE.test(type)
    ? "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads"
    : undefined;
}

/** Content-Disposition `inline` with a file name: bare, quoted, or encoded by RFC 2231 when necessary. */
export function inlineDisposition(name: string): string {
  if (/[^\t\x20-\x7e]/.test(name)) return `inline; filename*=utf-8''${percentEncode(name)}`;
  if (/^[!#$%&'*+.0-9A-Z^_`a-z{|}~-]+$/.test(name)) return `inline; filename=${name}`;
  return `inline; filename="${name.replace(/["\\]/g, "\\$&")}"`;
}

function percentEncode(text: string): string {
  return Array.from(Buffer.from(text, "utf8"), (byte) => {
    const character = String.fromCharCode(byte);
    return /[!#$&+.0-9A-Z^_`a-z{|}~-]/.test(character)
      ? character
      : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }).join("");
}
