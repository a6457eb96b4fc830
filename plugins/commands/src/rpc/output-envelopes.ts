import type { MessageStream } from "@coppice/core";
import type { Output } from "@coppice/core/backend";

// envd's read size for pipes and terminals; clients may have sized buffers after it.
const PIPE_CHUNK_BYTES = 32 * 1024;
const TERMINAL_CHUNK_BYTES = 16 * 1024;

/** Header of each message of a Connect stream: no flags, and the length. */
const ENVELOPE_BYTES = 5;

/** The data fields of ProcessEvent.DataEvent. */
const FIELDS = {
  stdout: { name: "stdout", number: 1, chunkBytes: PIPE_CHUNK_BYTES },
  stderr: { name: "stderr", number: 2, chunkBytes: PIPE_CHUNK_BYTES },
  terminal: { name: "pty", number: 3, chunkBytes: TERMINAL_CHUNK_BYTES },
} as const;

type Field = (typeof FIELDS)[Output["stream"]];

/**
 * Encodes a piece of output as data events of a process stream (StartResponse and ConnectResponse have the same
 * layout): each in its envelope, in envd's sizes. Equals the output of protobuf's own encoders, in parts; in protobuf,
 * some parts are views of the piece.
 */
export function outputEnvelopes({ stream, data }: Output, codec: MessageStream["codec"]): Buffer[] {
  const field = FIELDS[stream];
  const put = codec === "json" ? putJson : putProto;
  const parts: Buffer[] = [];
  for (let from = 0; from < data.length; from += field.chunkBytes) {
    const length = Math.min(field.chunkBytes, data.length - from);
    put(parts, field, Buffer.from(data.buffer, data.byteOffset + from, length));
  }
  return parts;
}

const JSON_END = '"}}}';

function jsonStart({ name }: Field): string {
  return `{"event":{"data":{"${name}":"`;
}

function putJson(parts: Buffer[], field: Field, chunk: Buffer): void {
  const start = jsonStart(field);
  const base64 = chunk.toString("base64");
  const length = start.length + base64.length + JSON_END.length;
  const envelope = Buffer.allocUnsafe(ENVELOPE_BYTES + length);
  envelope[0] = 0;
  let end = envelope.writeUInt32BE(length, 1);
  for (const text of [start, base64, JSON_END]) end += envelope.write(text, end, "latin1");
  parts.push(envelope);
}

/** `event` of the response, and `data` of the event; both length-delimited. */
const EVENT_TAG = (1 << 3) | 2;
const DATA_TAG = (2 << 3) | 2;
// Three tags, and three lengths of up to three bytes.
const HEAD_BYTES = ENVELOPE_BYTES + 3 * 4;

function putProto(parts: Buffer[], field: Field, chunk: Buffer): void {
  const data = delimitedBytes(chunk.length);
  const event = delimitedBytes(data);
  const head = Buffer.allocUnsafe(HEAD_BYTES);
  head[0] = 0;
  let end = head.writeUInt32BE(delimitedBytes(event), 1);
  end = writeDelimiter(head, end, { tag: EVENT_TAG, length: event });
  end = writeDelimiter(head, end, { tag: DATA_TAG, length: data });
  end = writeDelimiter(head, end, { tag: (field.number << 3) | 2, length: chunk.length });
  parts.push(head.subarray(0, end), chunk);
}

/** Size of a length-delimited field: its tag, its length and its bytes. */
function delimitedBytes(length: number): number {
  let bytes = 2;
  for (let rest = length >>> 7; rest > 0; rest >>>= 7) bytes += 1;
  return bytes + length;
}

function writeDelimiter(
  bytes: Buffer,
  at: number,
  { tag, length }: { readonly tag: number; readonly length: number },
): number {
  let end = bytes.writeUInt8(tag, at);
  let rest = length;
  for (; rest > 0x7f; rest >>>= 7) end = bytes.writeUInt8((rest & 0x7f) | 0x80, end);
  return bytes.writeUInt8(rest, end);
}
