import { createHash } from "node:crypto";

const DIGITS = 16;

/** Identifies the datasets of one installation among others in the same pool. */
export function installationOf(directory: string): string {
  return createHash("sha256").update(directory).digest("hex").slice(0, DIGITS);
}
