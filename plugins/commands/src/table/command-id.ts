import { randomUUID } from "node:crypto";

/** A version 7 UUID: its first 48 bits are the time, so that ids sort by it, the rest is random. */
export function newCommandId(nowMs: number): string {
  const time = Math.floor(nowMs).toString(16).padStart(12, "0");
  // One of version 4 has its random bits where this has them, and the runtime keeps some ready.
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`;
}
