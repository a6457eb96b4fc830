import { createHash } from "node:crypto";

const DIGITS = 16;

/** What tells the datasets of an installation from those of others in the same pool. */
export function installationOf(directory: string): string {
  return createHash("sha256").update(directory).digest("hex").slice(0, DIGITS);
}
