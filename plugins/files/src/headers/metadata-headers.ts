import type { IncomingHttpHeaders } from "node:http";
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
    if (key.length > MAX_KEY_BYTES) {
      throw invalid(`a key is ${key.length} bytes long, the limit is ${MAX_KEY_BYTES}`);
    }
    if (!/^[\x20-\x7e]*$/.test(text)) throw invalid(`the value of '${key}' is not printable ASCII`);
    totalBytes += ATTRIBUTE_PREFIX.length + key.length + text.length;
    metadata[key] = text;
  }
  if (totalBytes > MAX_TOTAL_BYTES) {
    throw invalid(`keys and values take ${totalBytes} bytes, the limit is ${MAX_TOTAL_BYTES}`);
  }
  return { ...metadata };
}

function invalid(reason: string): SandboxError {
  return new SandboxError("metadata_invalid", `invalid metadata: ${reason}`);
}
