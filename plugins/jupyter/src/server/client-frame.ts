import { isUtf8 } from "node:buffer";
import type { ChannelName } from "../transport/kernel-channels.js";
import { membersOf } from "../json/raw-json.js";
import type { MessageParts } from "../transport/wire.js";

/** The subprotocol that carries the parts of a message unchanged; without it, a message is one JSON text. */
export const V1_PROTOCOL = "v1.kernel.websocket.jupyter.org";

export type Framing = "v1" | "json";

/** A message of a client; the parts that the server relies on are validated. */
export interface ClientFrame extends MessageParts {
  /** As the client named it; it may not exist. */
  readonly channel: string;
  readonly id: string;
  readonly type: string;
  readonly session: string | undefined;
}

/** A message for clients, whose parts are known to be JSON objects in UTF-8. */
export interface ServerFrame extends MessageParts {
  readonly channel: ChannelName;
  readonly id: string;
  readonly type: string;
  readonly session: string;
}

export class FrameError extends Error {
  override readonly name = "FrameError";
}

const MAX_HEADER_BYTES = 64 * 1024;
const MAX_NAME = 256;
const MAX_BUFFERS = 1024;
/** Channel, header, parent header, metadata, content, and the end of the content. */
const MIN_OFFSETS = 6;
const EMPTY_OBJECT = Buffer.from("{}");
const OPEN_OBJECT = 0x7b;

/** Decodes a client's WebSocket message. @throws FrameError for anything but a message with a usable header. */
export function decodeFrame(data: Buffer, { framing, isBinary }: DecodeOptions): ClientFrame {
  if (framing === "v1") {
    if (!isBinary) throw new FrameError("a text frame under the binary subprotocol");
    return decodeV1(data);
  }
  return isBinary ? decodeJsonWithBuffers(data) : decodeJson(data, []);
}

export interface DecodeOptions {
  readonly framing: Framing;
  readonly isBinary: boolean;
}

export interface EncodedFrame {
  readonly data: Buffer;
  readonly isBinary: boolean;
}

export function encodeFrame(frame: ServerFrame, framing: Framing): EncodedFrame {
  if (framing === "v1") return { data: encodeV1(frame), isBinary: true };
  const json = encodeJson(frame);
  return frame.buffers.length === 0
    ? { data: json, isBinary: false }
    : { data: withBuffers(json, frame.buffers), isBinary: true };
}

/** True for one JSON object in valid UTF-8 of a reasonable depth. */
export function isJsonObject(part: Buffer): boolean {
  if (!isUtf8(part)) return false;
  try {
    membersOf(part);
    return true;
  } catch {
    return false;
  }
}

function decodeV1(data: Buffer): ClientFrame {
  const count = readOffset(data, 0);
  if (count < MIN_OFFSETS || count > MIN_OFFSETS + MAX_BUFFERS)
    throw new FrameError("a wrong number of parts");
  const parts: Buffer[] = [];
  let start = readOffset(data, 1);
  if (start < 8 * (count + 1)) throw new FrameError("an offset inside the table");
  for (let index = 2; index <= count; index++) {
    const end = readOffset(data, index);
    if (end < start || end > data.length) throw new FrameError("an offset out of order");
    parts.push(data.subarray(start, end));
    start = end;
  }
  const [channel, header, parentHeader, metadata, content, ...buffers] = parts;
  if (!channel || !header || !parentHeader || !metadata || !content) throw new FrameError("missing parts");
  return checked(channel.toString("latin1"), { header, parentHeader, metadata, content, buffers });
}

function readOffset(data: Buffer, index: number): number {
  if (data.length < 8 * (index + 1)) throw new FrameError("a table that is cut off");
  const offset = data.readBigUInt64LE(8 * index);
  // Beyond any frame; JavaScript cannot represent all larger numbers exactly.
  if (offset > 0xffff_ffffn) throw new FrameError("an offset beyond the end");
  return Number(offset);
}

function decodeJsonWithBuffers(data: Buffer): ClientFrame {
  if (data.length < 4) throw new FrameError("a table that is cut off");
  const count = data.readUInt32BE(0);
  if (count < 1 || count > MAX_BUFFERS + 1 || data.length < 4 * (count + 1))
    throw new FrameError("a wrong number of parts");
  const offsets = Array.from({ length: count }, (_, index) => data.readUInt32BE(4 * (index + 1)));
  const parts = offsets.map((start, index) => {
    const end = offsets[index + 1] ?? data.length;
    if (start < 4 * (count + 1) || end < start || end > data.length)
      throw new FrameError("an offset out of order");
    return data.subarray(start, end);
  });
  const [json, ...buffers] = parts;
  if (json === undefined) throw new FrameError("missing parts");
  return decodeJson(json, buffers);
}

function decodeJson(json: Buffer, buffers: readonly Buffer[]): ClientFrame {
  if (!isUtf8(json)) throw new FrameError("a text that is no UTF-8");
  let members: ReturnType<typeof membersOf>;
  try {
    members = membersOf(json);
  } catch (error) {
    throw new FrameError("a text that is no JSON object", { cause: error });
  }
  const partOf = (name: string): Buffer => {
    const part = members.get(name)?.bytes;
    // Some clients send null for a missing parent.
    return part === undefined || part.equals(NULL) ? EMPTY_OBJECT : part;
  };
  const channel = members.get("channel")?.bytes;
  return checked(channel === undefined ? "shell" : channelIn(channel), {
    header: partOf("header"),
    parentHeader: partOf("parent_header"),
    metadata: partOf("metadata"),
    content: partOf("content"),
    buffers,
  });
}

const NULL = Buffer.from("null");

function channelIn(json: Buffer): string {
  const value: unknown = json.length <= MAX_NAME ? JSON.parse(json.toString("utf8")) : undefined;
  return typeof value === "string" ? value : "";
}

function checked(channel: string, parts: MessageParts): ClientFrame {
  const { header, parentHeader, metadata, content } = parts;
  if (header.length > MAX_HEADER_BYTES || parentHeader.length > MAX_HEADER_BYTES)
    throw new FrameError("an oversized header");
  for (const part of [header, parentHeader, metadata, content]) {
    if (part[0] !== OPEN_OBJECT || !isJsonObject(part)) throw new FrameError("a part that is no JSON object");
  }
  const fields = JSON.parse(header.toString("utf8")) as object;
  const id = textIn(fields, "msg_id");
  const type = textIn(fields, "msg_type");
  if (id === undefined || id === "" || type === undefined || type === "")
    throw new FrameError("a header without msg_id or msg_type");
  return { channel, id, type, session: textIn(fields, "session"), ...parts };
}

function textIn(fields: object, name: string): string | undefined {
  const value: unknown = Object.hasOwn(fields, name) ? Reflect.get(fields, name) : undefined;
  if (typeof value !== "string") return undefined;
  if (value.length > MAX_NAME) throw new FrameError("an oversized name in a header");
  return value;
}

function encodeV1({ channel, header, parentHeader, metadata, content, buffers }: ServerFrame): Buffer {
  const parts = [Buffer.from(channel), header, parentHeader, metadata, content, ...buffers];
  const table = Buffer.alloc(8 * (parts.length + 2));
  table.writeBigUInt64LE(BigInt(parts.length + 1), 0);
  let offset = table.length;
  table.writeBigUInt64LE(BigInt(offset), 8);
  parts.forEach((part, index) => {
    offset += part.length;
    table.writeBigUInt64LE(BigInt(offset), 8 * (index + 2));
  });
  return Buffer.concat([table, ...parts], offset);
}

function encodeJson({ channel, id, type, header, parentHeader, metadata, content }: ServerFrame): Buffer {
  return Buffer.concat([
    Buffer.from('{"header": '),
    header,
    // Outside of the header as well: some clients look for them there.
    Buffer.from(`, "msg_id": ${JSON.stringify(id)}, "msg_type": ${JSON.stringify(type)}, "parent_header": `),
    parentHeader,
    Buffer.from(', "metadata": '),
    metadata,
    Buffer.from(', "content": '),
    content,
    Buffer.from(`, "buffers": [], "channel": "${channel}"}`),
  ]);
}

function withBuffers(json: Buffer, buffers: readonly Buffer[]): Buffer {
  const parts = [json, ...buffers];
  const table = Buffer.alloc(4 * (parts.length + 1));
  table.writeUInt32BE(parts.length, 0);
  let offset = table.length;
  parts.forEach((part, index) => {
    table.writeUInt32BE(offset, 4 * (index + 1));
    offset += part.length;
  });
  return Buffer.concat([table, ...parts], offset);
}
