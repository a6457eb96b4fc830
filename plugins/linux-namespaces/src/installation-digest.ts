import { createHash } from "node:crypto";
import { resolve } from "node:path";

/** A short name of an installation, for what it owns of the host: 8 hex digits of where its sandboxes are kept. */
export function installationDigest(directory: string): string {
  return createHash("sha256").update(resolve(directory)).digest("hex").slice(0, 8);
}
