import type { MessageStream } from "@coppice/core";
import type { Output } from "@coppice/core/backend";

// What envd reads from a pipe or a terminal at a time; clients may have sized buffers after it.
const PIPE_CHUNK_BYTES = 32 * 1024;
const TERMINAL_CHUNK_BYTES = 16 * 1024;

/** What stands before each message of a Connect stream: no flags, and its length. */
const ENVELOPE_BYTES = 5;

/** The data fields of ProcessEvent.DataEvent. */
const FIELDS = {
  stdout: { name: "stdout", number: 1, chunkBytes: PIPE_CHUNK_BYTES },
  stderr: { name: "stderr", number: 2, chunkBytes: PIPE_CHUNK_BYTES },
  terminal: { name: "pty", number: 3, chunkBytes: TERMINAL_CHUNK_BYTES },
} as const;

type Field = (typeof FIELDS)[Output["stream"]];

/**
 * A piece of output as the data events of a process stream, which StartResponse and ConnectResponse have alike:
 * each in its envelope, of the size that envd gives them. As protobuf's own encoders write them, with one copy.
 */
export function outputEnvelopes({ stream, data }: Output, codec: MessageStream["codec"]): Buffer {
  const field = FIELDS[stream];
  const write = codec === "json" ? writeJson : writeProto;
  const fullCount = Math.floor(data.length / field.chunkBytes);
  const rest = data.length % field.chunkBytes;
  const measure = codec === "json" ? jsonBytes : protoBytes;
  const bytes = Buffer.allocUnsafe(
    fullCount * (ENVELOPE_BYTES + measure(field, field.chunkBytes)) +
      (rest > 0 ? ENVELOPE_BYTES + measure(field, rest) : 0),
  );
  let at = 0;
  for (let from = 0; from < data.length; from += field.chunkBytes) {
    const chunk = data.subarray(from, from + field.chunkBytes);
    bytes[at] = 0;
    at = bytes.writeUInt32BE(measure(field, chunk.length), at + 1);
    at = write(bytes, at, { field, chunk });
  }
  return bytes;
}

interface Event {
  readonly field: Field;
  readonly chunk: Uint8Array;
}

const JSON_END = '"}}}';

function jsonStart({ name }: Field): string {
  return `{"event":{"data":{"${name}":"`;
}

function jsonBytes(field: Field, dataBytes: number): number {
  return jsonStart(field).length + Math.ceil(dataBytes / 3) * 4 + JSON_END.length;
}

/** @returns where it ends. */
function writeJson(bytes: Buffer, at: number, { field, chunk }: Event): number {
  const base64 = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength).toString("base64");
  let end = at + bytes.write(jsonStart(field), at, "latin1");
  end += bytes.write(base64, end, "latin1");
  return end + bytes.write(JSON_END, end, "latin1");
}

/** `event` of the response, and `data` of the event; both length-delimited. */
const EVENT_TAG = (1 << 3) | 2;
const DATA_TAG = (2 << 3) | 2;

function protoBytes(_: Field, dataBytes: number): number {
  return delimitedBytes(delimitedBytes(delimitedBytes(dataBytes)));
}

/** @returns where it ends. */
function writeProto(bytes: Buffer, at: number, { field, chunk }: Event): number {
  const data = delimitedBytes(chunk.length);
  let end = writeDelimiter(bytes, at, { tag: EVENT_TAG, length: delimitedBytes(data) });
  end = writeDelimiter(bytes, end, { tag: DATA_TAG, length: data });
  end = writeDelimiter(bytes, end, { tag: (field.number << 3) | 2, length: chunk.length });
  bytes.set(chunk, end);
  return end + chunk.length;
}

/** Of a field with so many bytes: its tag, its length and itself. */
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
