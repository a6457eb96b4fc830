import { createHash } from "node:crypto";
import { resolve } from "node:path";

/** Short name of an installation for its resources on the host: 8 hex digits of a digest of its directory. */
export function installationDigest(directory: string): string {
  return createHash("sha256").update(resolve(directory)).digest("hex").slice(0, 8);
}
