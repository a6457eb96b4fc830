import { SandboxError } from "@coppice/core";

/** First byte of a frame. */
const Kind = { Input: 0x01, Output: 0x02, Resize: 0x03, Exit: 0x04, Ping: 0x05 } as const;

export type ClientFrame =
  | { readonly type: "input"; readonly data: Buffer }
  | { readonly type: "resize"; readonly columns: number; readonly rows: number }
  | { readonly type: "ping" };

const RESIZE_BYTES = 5;

/** Sent by both sides; neither answers one of the server's with more than one. */
export const PING = Buffer.of(Kind.Ping);

/** Parses a binary message of a client. @throws SandboxError invalid_argument for an invalid one. */
export function parseFrame(message: Buffer): ClientFrame {
  const [kind] = message;
  if (kind === Kind.Input) return { type: "input", data: message.subarray(1) };
  if (kind === Kind.Ping) return { type: "ping" };
  if (kind === Kind.Resize && message.length === RESIZE_BYTES) {
    const [columns, rows] = [message.readUInt16BE(1), message.readUInt16BE(3)];
    if (columns > 0 && rows > 0) return { type: "resize", columns, rows };
  }
  throw new SandboxError("frame_invalid", "no frame that this server knows");
}

export function outputFrame(data: Uint8Array): Buffer {
  return Buffer.concat([Buffer.of(Kind.Output), data]);
}

/** The end of a terminal, with its shell's exit code as a signed 32-bit number. */
export function exitFrame(code: number): Buffer {
  const frame = Buffer.alloc(5);
  frame.writeUInt8(Kind.Exit);
  frame.writeInt32BE(code, 1);
  return frame;
}
