import { hash, timingSafeEqual } from "node:crypto";

/** Compares a secret with a client's text in a time that depends on neither. */
export function secretEqual(secret: string, given: string): boolean {
  return timingSafeEqual(hash("sha256", secret, "buffer"), hash("sha256", given, "buffer"));
}
