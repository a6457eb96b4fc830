import { isUtf8 } from "node:buffer";
import { createHmac, timingSafeEqual } from "node:crypto";
import { setImmediate as nextTurn } from "node:timers/promises";
import { characterEnd } from "../json/ascii-json.js";
import { membersOfLong } from "../json/raw-json.js";

interface ClientMessage {
  /** Never reused: a kernel drops a message whose signature it has seen. */
  readonly id: string;
  readonly type: string;
  readonly session: string;
  readonly content: Readonly<Record<string, unknown>>;
  readonly metadata?: Readonly<Record<string, unknown>> | undefined;
}

/** The unchanged parts of a message: four pieces of JSON text, and buffers. */
export interface MessageParts {
  readonly header: Buffer;
  readonly parentHeader: Buffer;
  readonly metadata: Buffer;
  readonly content: Buffer;
  readonly buffers: readonly Buffer[];
}

/** A message of a kernel. Its signature is verified, and only its headers are parsed. */
export interface KernelMessage extends MessageParts {
  readonly id: string;
  readonly type: string;
  /** The kernel's session, which changes at each start. */
  readonly session: string | undefined;
  /** As the kernel wrote it; usually ISO 8601. */
  readonly date: string | undefined;
  /** Id and type of its request, and session of the client that sent it. */
  readonly parentId: string | undefined;
  readonly parentType: string | undefined;
  readonly parentSession: string | undefined;
  /** True when the content is known to be a JSON object; only long contents are checked on arrival. */
  readonly isChecked?: boolean;
}

export class WireError extends Error {
  override readonly name = "WireError";
}

const DELIMITER = Buffer.from("<IDS|MSG>");
// Headers are a few hundred bytes; larger ones are refused unparsed.
const MAX_HEADER_BYTES = 16 * 1024;
const MAX_METADATA_BYTES = 64 * 1024;
/** Length from which signing and checking yield to the event loop. */
const LONG_BYTES = 64 * 1024;
/** Bytes between two turns of it. */
const SLICE_BYTES = 1024 * 1024;

/** The frames of a message in Jupyter's protocol 5.3, without routing identities. */
export function encodeMessage(message: ClientMessage, key: string): readonly Buffer[] {
  const json = (part: unknown): Buffer => Buffer.from(JSON.stringify(part));
  const [parentHeader, metadata, content] = [json({}), json(message.metadata ?? {}), json(message.content)];
  return signedFrames({ header: headerOf(message), parentHeader, metadata, content, buffers: [] }, key);
}

/** The header of a message of the server. */
export function headerOf({ id, type, session }: Pick<ClientMessage, "id" | "type" | "session">): Buffer {
  const common = { username: "coppice", date: new Date().toISOString(), version: "5.3" };
  return Buffer.from(JSON.stringify({ msg_id: id, msg_type: type, session, ...common }));
}

/** The frames of a forwarded message with a new signature. */
export function signedFrames(parts: MessageParts, key: string): readonly Buffer[] {
  const { header, parentHeader, metadata, content, buffers } = parts;
  const signed = [header, parentHeader, metadata, content];
  return [DELIMITER, Buffer.from(signatureOf(signed, key)), ...signed, ...buffers];
}

/**
 * Decodes the frames of one message; yields to the event loop during a long one.
 * @throws WireError for missing frames, a wrong signature, unusable headers, oversized metadata, and for a long content
 * that is no JSON object.
 */
export async function decodeMessage(frames: readonly Buffer[], key: string): Promise<KernelMessage> {
  const start = frames.findIndex((frame) => frame.equals(DELIMITER));
  if (start < 0) throw new WireError("no delimiter");
  const [signature, header, parentHeader, metadata, content, ...buffers] = frames.slice(start + 1);
  if (!signature || !header || !parentHeader || !metadata || !content) throw new WireError("missing frames");
  const isLong = content.length >= LONG_BYTES;
  if (metadata.length > MAX_METADATA_BYTES) throw new WireError("oversized metadata");
  const signed = [header, parentHeader, metadata, content];
  const expected = Buffer.from(isLong ? await longSignatureOf(signed, key) : signatureOf(signed, key));
  if (signature.length !== expected.length || !timingSafeEqual(signature, expected)) {
    throw new WireError("wrong signature");
  }
  const fields = headerFields(header);
  const parent = headerFields(parentHeader);
  const id = textIn(fields, "msg_id");
  const type = textIn(fields, "msg_type");
  if (id === undefined || type === undefined) throw new WireError("a header without msg_id or msg_type");
  if (isLong) await checkLong(content);
  return {
    id,
    type,
    session: textIn(fields, "session"),
    date: textIn(fields, "date"),
    parentId: textIn(parent, "msg_id"),
    parentType: textIn(parent, "msg_type"),
    parentSession: textIn(parent, "session"),
    header,
    parentHeader,
    metadata,
    content,
    buffers,
    isChecked: isLong,
  };
}

function signatureOf(parts: readonly Buffer[], key: string): string {
  const hmac = createHmac("sha256", key);
  for (const part of parts) hmac.update(part);
  return hmac.digest("hex");
}

async function longSignatureOf(parts: readonly Buffer[], key: string): Promise<string> {
  const hmac = createHmac("sha256", key);
  for (const part of parts) {
    for (let start = 0; start < part.length; start += SLICE_BYTES) {
      hmac.update(part.subarray(start, start + SLICE_BYTES));
      await nextTurn();
    }
  }
  return hmac.digest("hex");
}

async function checkLong(content: Buffer): Promise<void> {
  try {
    await membersOfLong(content);
  } catch (error) {
    throw new WireError("a content that is no JSON object", { cause: error });
  }
  for (let start = 0; start < content.length;) {
    // In invalid UTF-8 at least one of the two parts is invalid, too.
    const end = characterEnd(content, start + SLICE_BYTES);
    if (!isUtf8(content.subarray(start, end))) throw new WireError("a content that is no UTF-8");
    start = end;
    await nextTurn();
  }
}

function headerFields(header: Buffer): object {
  if (header.length > MAX_HEADER_BYTES) throw new WireError("an oversized header");
  let fields: unknown;
  try {
    fields = JSON.parse(header.toString("utf8"));
  } catch (error) {
    throw new WireError("a header that is no JSON", { cause: error });
  }
  if (typeof fields !== "object" || fields === null) throw new WireError("a header that is no object");
  return fields;
}

/** A member of a header, where it is a text. */
export function textIn(fields: object, name: string): string | undefined {
  const value: unknown = Object.hasOwn(fields, name) ? Reflect.get(fields, name) : undefined;
  return typeof value === "string" ? value : undefined;
}

/** Bytes of all frames together. */
export function sizeOf(frames: readonly Buffer[]): number {
  return frames.reduce((sum, { length }) => sum + length, 0);
}
