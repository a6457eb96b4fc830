import { type messageStreamOf, putBase64 } from "@coppice/core";
import type { Output } from "@coppice/core/backend";
import { EventBlock } from "./event-block.js";

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
type Codec = ReturnType<typeof messageStreamOf>["codec"];

/**
 * Encodes output as data events of a process stream (StartResponse and ConnectResponse have the same layout): each in its
 * envelope, in envd's sizes. Equals the output of protobuf's own encoders.
 */
export function outputEnvelopes(pieces: readonly Output[], codec: Codec): EventBlock {
  const sizeOf = codec === "json" ? jsonBytes : protoBytes;
  const put = codec === "json" ? putJson : putProto;
  let bytes = 0;
  for (const { field, chunk } of eventsOf(pieces)) bytes += ENVELOPE_BYTES + sizeOf(field, chunk.length);
  const block = new EventBlock(bytes);
  let end = 0;
  for (const { field, chunk } of eventsOf(pieces)) {
    block.bytes[end] = 0;
    block.bytes.writeUInt32BE(sizeOf(field, chunk.length), end + 1);
    end = put(block.bytes, end + ENVELOPE_BYTES, field, chunk);
  }
  return block;
}

function* eventsOf(pieces: readonly Output[]): Generator<{ readonly field: Field; readonly chunk: Buffer }> {
  for (const { stream, data } of pieces) {
    const field = FIELDS[stream];
    for (let from = 0; from < data.length; from += field.chunkBytes) {
      const length = Math.min(field.chunkBytes, data.length - from);
      yield { field, chunk: Buffer.from(data.buffer, data.byteOffset + from, length) };
    }
  }
}

const JSON_END = '"}}}';

function jsonStart({ name }: Field): string {
  return `{"event":{"data":{"${name}":"`;
}

function jsonBytes(field: Field, dataBytes: number): number {
  return jsonStart(field).length + Math.ceil(dataBytes / 3) * 4 + JSON_END.length;
}

function putJson(bytes: Buffer, at: number, field: Field, chunk: Buffer): number {
  const from = at + bytes.write(jsonStart(field), at, "latin1");
  const end = putBase64(bytes, from, chunk);
  return end + bytes.write(JSON_END, end, "latin1");
}

/** `event` of the response, and `data` of the event; both length-delimited. */
const EVENT_TAG = (1 << 3) | 2;
const DATA_TAG = (2 << 3) | 2;

function protoBytes(_field: Field, dataBytes: number): number {
  return delimitedBytes(delimitedBytes(delimitedBytes(dataBytes)));
}

function putProto(bytes: Buffer, at: number, field: Field, chunk: Buffer): number {
  const data = delimitedBytes(chunk.length);
  let end = writeDelimiter(bytes, at, { tag: EVENT_TAG, length: delimitedBytes(data) });
  end = writeDelimiter(bytes, end, { tag: DATA_TAG, length: data });
  end = writeDelimiter(bytes, end, { tag: (field.number << 3) | 2, length: chunk.length });
  bytes.set(chunk, end);
  return end + chunk.length;
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
