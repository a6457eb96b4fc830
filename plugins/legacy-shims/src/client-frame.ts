import { parseJson, SandboxError } from "@coppice/core";
import { z } from "zod";

/** Message of a client over a WebSocket, in either dialect. */
export type ClientFrame =
  | { readonly type: "input"; readonly data: Uint8Array }
  | { readonly type: "resize"; readonly columns: number; readonly rows: number }
  /** A frame of a newer client, which this server can ignore. */
  | { readonly type: "unknown" };

export const MAX_TERMINAL = 65_535;
const cells = z.int().min(1).max(MAX_TERMINAL);

const textFrame = z.union([
  z.object({ type: z.literal("input"), data: z.string() }),
  // The older dialect calls its own frames after the stream, and their content `text`.
  z.object({ type: z.literal("stdin"), text: z.string() }),
  z.object({ type: z.literal("resize"), cols: cells, rows: cells }),
]);
const anyFrame = z.object({ type: z.string() });
const KNOWN_TYPES = ["input", "stdin", "resize"];

/** Parses a message; a binary one is plain input. @throws SandboxError invalid_argument for an invalid frame. */
export function parseClientFrame(message: Buffer, isBinary: boolean): ClientFrame {
  if (isBinary) return { type: "input", data: message };
  const value = valueOf(message);
  const parsed = textFrame.safeParse(value);
  if (!parsed.success) {
    const named = anyFrame.safeParse(value);
    if (named.success && !KNOWN_TYPES.includes(named.data.type)) return { type: "unknown" };
    throw new SandboxError("frame_invalid", "no frame that this server knows");
  }
  const frame = parsed.data;
  if (frame.type === "resize") return { type: "resize", columns: frame.cols, rows: frame.rows };
  return { type: "input", data: Buffer.from(frame.type === "input" ? frame.data : frame.text) };
}

function valueOf(message: Buffer): unknown {
  try {
    return parseJson(message);
  } catch {
    throw new SandboxError("frame_invalid", "a text frame is JSON with few values");
  }
}
