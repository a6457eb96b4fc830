import { isUtf8 } from "node:buffer";
import { setImmediate as nextTurn } from "node:timers/promises";
import { ValueCount } from "@coppice/core";
import type { ChannelName } from "../transport/kernel-channels.js";
import { membersOf, membersOfLong } from "../json/raw-json.js";
import { type MessageParts, sizeOf, textIn } from "../transport/wire.js";

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

const MAX_HEADER_BYTES = 16 * 1024;
/** Of what is not in buffers. */
const MAX_JSON_BYTES = 4 * 1024 * 1024;
/** Bytes whose values are counted in one turn of the event loop. */
const SLICE_BYTES = 512 * 1024;
const MOST_VALUES = 10_000;
const MAX_NAME = 256;
const MAX_BUFFERS = 1024;

interface Table {
  /** Bytes of the number of offsets, and of each offset. */
  readonly width: 4 | 8;
  /** True where the last offset is the end of the last part. */
  readonly hasEnd: boolean;
  /** Number of offsets without buffers. */
  readonly least: number;
}

/** Channel, header, parent header, metadata, content, and the end of the content. */
const V1_TABLE: Table = { width: 8, hasEnd: true, least: 6 };
const JSON_TABLE: Table = { width: 4, hasEnd: false, least: 1 };
const EMPTY_OBJECT = Buffer.from("{}");
const OPEN_OBJECT = 0x7b;

/**
 * Decodes a client's WebSocket message, a long one in several turns of the event loop. Rejects with a FrameError for
 * anything but a message with a usable header.
 */
export async function decodeFrame(data: Buffer, { framing, isBinary }: DecodeOptions): Promise<ClientFrame> {
  if (framing === "v1") {
    if (!isBinary) throw new FrameError("a text frame under the binary subprotocol");
    return decodeV1(data);
  }
  const [json = data, ...buffers] = isBinary ? partsOf(data, JSON_TABLE) : [];
  return decodeJson(json, buffers);
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
  const { channel, header, parentHeader, metadata, content, buffers } = frame;
  if (framing === "v1") {
    const parts = [Buffer.from(channel), header, parentHeader, metadata, content, ...buffers];
    return { data: joined(parts, V1_TABLE), isBinary: true };
  }
  const json = encodeJson(frame);
  return buffers.length === 0
    ? { data: json, isBinary: false }
    : { data: joined([json, ...buffers], JSON_TABLE), isBinary: true };
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

/** The parts that follow a table of their offsets. */
function partsOf(data: Buffer, { width, hasEnd, least }: Table): Buffer[] {
  const read = (index: number): number => {
    if (data.length < width * (index + 1)) throw new FrameError("a table that is cut off");
    if (width === 4) return data.readUInt32BE(4 * index);
    // Beyond any frame; JavaScript cannot represent all larger numbers exactly.
    const offset = data.readBigUInt64LE(8 * index);
    if (offset > 0xffff_ffffn) throw new FrameError("an offset beyond the end");
    return Number(offset);
  };
  const count = read(0);
  if (count < least || count > least + MAX_BUFFERS) throw new FrameError("a wrong number of parts");
  const starts = Array.from({ length: count }, (_, index) => read(index + 1));
  const ends = [...starts.slice(1), ...(hasEnd ? [] : [data.length])];
  return ends.map((end, index) => {
    const start = starts[index] ?? 0;
    if (start < width * (count + 1)) throw new FrameError("an offset inside the table");
    if (end < start || end > data.length) throw new FrameError("an offset out of order");
    return data.subarray(start, end);
  });
}

function joined(parts: readonly Buffer[], { width, hasEnd }: Table): Buffer {
  const count = parts.length + (hasEnd ? 1 : 0);
  const table = Buffer.alloc(width * (count + 1));
  const write = (value: number, index: number): void => {
    if (width === 4) table.writeUInt32BE(value, 4 * index);
    else table.writeBigUInt64LE(BigInt(value), 8 * index);
  };
  write(count, 0);
  let offset = table.length;
  for (let index = 0; index < count; index++) {
    write(offset, index + 1);
    offset += parts[index]?.length ?? 0;
  }
  return Buffer.concat([table, ...parts], offset);
}

async function decodeV1(data: Buffer): Promise<ClientFrame> {
  const [channel, header, parentHeader, metadata, content, ...buffers] = partsOf(data, V1_TABLE);
  if (!channel || !header || !parentHeader || !metadata || !content) throw new FrameError("missing parts");
  const parts = [header, parentHeader, metadata, content];
  await requireShort(parts);
  for (const part of parts) await membersIn(part);
  return checked(channel.toString("latin1"), { header, parentHeader, metadata, content, buffers });
}

async function decodeJson(json: Buffer, buffers: readonly Buffer[]): Promise<ClientFrame> {
  await requireShort([json]);
  const members = await membersIn(json);
  const partOf = (name: string): Buffer => {
    const part = members.get(name);
    // Some clients send null for a missing parent.
    return part === undefined || part.equals(NULL) ? EMPTY_OBJECT : part;
  };
  const channel = members.get("channel");
  return checked(channel === undefined ? "shell" : channelIn(channel), {
    header: partOf("header"),
    parentHeader: partOf("parent_header"),
    metadata: partOf("metadata"),
    content: partOf("content"),
    buffers,
  });
}

async function membersIn(json: Buffer): Promise<ReadonlyMap<string, Buffer>> {
  if (!isUtf8(json)) throw new FrameError("a text that is no UTF-8");
  try {
    return await membersOfLong(json);
  } catch (error) {
    throw new FrameError("a text that is no JSON object", { cause: error });
  }
}

async function requireShort(parts: readonly Buffer[]): Promise<void> {
  if (sizeOf(parts) > MAX_JSON_BYTES)
    throw new FrameError(`more than ${MAX_JSON_BYTES} bytes without the buffers`);
  const values = new ValueCount(MOST_VALUES);
  try {
    for (const part of parts)
      for (let at = 0; at < part.length; at += SLICE_BYTES) {
        if (at > 0) await nextTurn();
        values.add(part.subarray(at, at + SLICE_BYTES));
      }
  } catch (error) {
    throw new FrameError(`more than ${MOST_VALUES} values`, { cause: error });
  }
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
  if ([header, parentHeader, metadata, content].some(([first]) => first !== OPEN_OBJECT))
    throw new FrameError("a part that is no JSON object");
  const fields = JSON.parse(header.toString("utf8")) as object;
  const id = nameIn(fields, "msg_id");
  const type = nameIn(fields, "msg_type");
  if (id === undefined || id === "" || type === undefined || type === "")
    throw new FrameError("a header without msg_id or msg_type");
  return { channel, id, type, session: nameIn(fields, "session"), ...parts };
}

function nameIn(fields: object, name: string): string | undefined {
  const value = textIn(fields, name);
  if (value !== undefined && value.length > MAX_NAME) throw new FrameError("an oversized name in a header");
  return value;
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
