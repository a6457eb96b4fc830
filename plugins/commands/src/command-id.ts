import { randomBytes } from "node:crypto";

/** A version 7 UUID: its first 48 bits are the time, so that ids sort by it, the rest is random. */
export function newCommandId(nowMs: number): string {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Math.floor(nowMs), 0, 6);
  bytes.writeUInt8((bytes.readUInt8(6) & 0x0f) | 0x70, 6);
  bytes.writeUInt8((bytes.readUInt8(8) & 0x3f) | 0x80, 8);
  const hex = bytes.toString("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}
