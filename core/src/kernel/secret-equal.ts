import { timingSafeEqual } from "node:crypto";

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
