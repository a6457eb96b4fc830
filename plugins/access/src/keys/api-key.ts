import { hash, randomBytes } from "node:crypto";

/** Fixed by E2B's older Python SDKs, which send no key of another form. */
export const API_KEY_FORM = /^e2b_[0-9a-f]+$/;

/** A new key: `e2b_` and 40 hex digits, 160 random bits. */
export function newApiKey(): string {
  return `e2b_${randomBytes(20).toString("hex")}`;
}

/**
 * Digest under which a key is stored and looked up. Neither a leaked digest nor the time of a comparison reveals a key.
 * No salt: keys are random, unlike passwords.
 */
export function digestOf(key: string): string {
  return hash("sha256", key, "hex");
}
