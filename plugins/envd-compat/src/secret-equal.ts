import { hash, timingSafeEqual } from "node:crypto";

/** Compares a secret with what a client presents, in a time that tells nothing about either. */
export function secretEqual(secret: string, given: string): boolean {
  return timingSafeEqual(hash("sha256", secret, "buffer"), hash("sha256", given, "buffer"));
}
