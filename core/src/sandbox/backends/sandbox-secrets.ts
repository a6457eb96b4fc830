import { hash, randomBytes, randomInt } from "node:crypto";
import { secretEqual } from "../../kernel/secret-equal.js";

const PREFIXES = { sandbox: "i", snapshot: "s", volume: "v", image: "m", template: "" } as const;
const ID_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH = 20;

/** An id like E2B's: a letter for its kind, none for a template, and 20 unguessable characters of `[a-z0-9]`. */
export function newId(kind: keyof typeof PREFIXES): string {
  let id: string = PREFIXES[kind];
  for (let length = 0; length < ID_LENGTH; length += 1) id += ID_ALPHABET[randomInt(ID_ALPHABET.length)];
  return id;
}

/** An access token: 43 URL-safe characters that carry 256 random bits. */
export function newAccessToken(): string {
  return randomBytes(32).toString("base64url");
}

/** Digest that is stored in place of a token: SHA-256 in hexadecimal digits. */
export function digestOf(token: string): string {
  return hash("sha256", token, "hex");
}

/** Compares a token with a digest in constant time. */
export function isDigestOf(digest: string, token: string): boolean {
  return secretEqual(digest, digestOf(token));
}
