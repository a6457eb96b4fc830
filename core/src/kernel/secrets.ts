import { hash, randomBytes, randomInt, timingSafeEqual } from "node:crypto";

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

/** SHA-256 of a text in hexadecimal digits, as it is stored in place of a token. */
export function digestOf(token: string): string {
  return hash("sha256", token, "hex");
}

/** Compares a token with a digest in constant time. */
export function isDigestOf(digest: string, token: string): boolean {
  return secretEqual(digest, digestOf(token));
}

/**
 * Compares a secret with a client's text in a time that tells nothing of the secret but its length. Digests of both, which
 * would hide that, too, took a twentieth of the time of a small request.
 */
export function secretEqual(secret: string, given: string): boolean {
  const expected = Buffer.from(secret);
  const received = Buffer.from(given);
  const isAsLong = received.length === expected.length;
  return timingSafeEqual(expected, isAsLong ? received : expected) && isAsLong;
}

/** The same UUID for the same text, at every server. */
export function uuidOf(text: string): string {
  const hex = digestOf(text);
  const parts = [hex.slice(0, 8), hex.slice(8, 12), `8${hex.slice(13, 16)}`, `8${hex.slice(17, 20)}`];
  return [...parts, hex.slice(20, 32)].join("-");
}
