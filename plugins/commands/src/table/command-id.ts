import { randomUUID } from "node:crypto";

/** A version 7 UUID: 48 bits of time, so that ids sort by it, then random bits. */
export function newCommandId(nowMs: number): string {
  const time = Math.floor(nowMs).toString(16).padStart(12, "0");
  // A version 4 UUID has its random bits in the same places, and the runtime keeps some ready.
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`;
}
