import { crc32 } from "node:zlib";
import type { Exit, Output } from "@coppice/core/backend";
import { z } from "zod";
import type { CommandEnd } from "../contract/commands.js";

/**
 * The records of a segment file. After `SEGMENT_MAGIC` they follow one another, each
 *
 *     length of the body  uint32 | kind  uint8 | CRC-32 of the body and of both  uint32 | body
 *
 * all little-endian. A record is whole when its checksum says so: what a crash left of the last one
 * is not, whether it is cut, filled with zeros or with what the disk held before. Of a large body the
 * checksum has the beginning of every block and the end: crashes lose blocks, and reading every byte of
 * a flood of output again would slow it down. It begins with the number of the segment: the file of an
 * old one may be written anew from its beginning, and what follows the new records is then none of them.
 */
export const SEGMENT_MAGIC: Buffer = Buffer.from("coplog\0\u0002", "latin1");

/** Says who a number is for the rest of its segment. */
export interface StartRecord {
  readonly kind: "start";
  /** Stands for the command in the other records of this segment. */
  readonly number: number;
  readonly id: string;
  readonly pid: number;
  readonly path: string;
  readonly tag?: string | undefined;
  readonly startedAtMs: number;
  /** Where the command's output had got to. */
  readonly offset: number;
}

/** A piece of output. */
export interface DataRecord {
  readonly kind: "data";
  readonly number: number;
  readonly stream: Output["stream"];
  /** Bytes that the command wrote before, on all streams together. */
  readonly offset: number;
  readonly atMs: number;
  readonly data: Buffer;
}

/** The last word on a command. */
export interface EndRecord {
  readonly kind: "end";
  readonly number: number;
  /** All that the command wrote. */
  readonly offset: number;
  readonly end: CommandEnd;
}

/** Footer of a finished segment, see SegmentIndex. */
export interface IndexRecord {
  readonly kind: "index";
  readonly json: Buffer;
}

export type SegmentRecord = StartRecord | DataRecord | EndRecord | IndexRecord;

/** Fixed part of every record. */
export const RECORD_HEAD_BYTES = 9;

// No file system keeps less than a block together.
const BLOCK_BYTES = 4096;
const SAMPLE_BYTES = 64;
const KINDS = ["start", "data", "end", "index"] as const;
const STREAMS: readonly Output["stream"][] = ["stdout", "stderr", "terminal"];
// Fields before the data in the body of a data record.
const DATA_FIELDS_BYTES = 4 + 1 + 8 + 8;
/** Bytes before the data of a data record. */
export const DATA_START_BYTES: number = RECORD_HEAD_BYTES + DATA_FIELDS_BYTES;

const exit: z.ZodType<Exit> = z.union([
  z.object({ code: z.int() }),
  z.object({ signal: z.custom<NodeJS.Signals>((value) => /^SIG\w+$/.test(String(value))) }).extend({
    coreDumped: z.boolean().default(false),
  }),
]);

/** How a command ended, as JSON has it. */
export const CommandEndJson: z.ZodType<CommandEnd> = z
  .object({
    exit: exit.optional(),
    outcome: z.enum(["ok", "error", "killed"]),
    endedAtMs: z.number(),
  })
  .transform(({ exit, ...end }) => ({ exit, ...end }));

const startJson = z.object({
  number: z.int().min(0),
  id: z.string(),
  pid: z.int(),
  path: z.string(),
  tag: z.string().optional(),
  startedAtMs: z.number(),
  offset: z.int().min(0),
});

const endJson = z.object({ number: z.int().min(0), offset: z.int().min(0), end: CommandEndJson });

/** Checksum by which `decodeRecord` verifies a record, over its length, kind and body; of a long body over samples. */
function checksumOf(seed: number, start: Buffer, rest: Buffer): number {
  const checksum = crc32(start, seed);
  if (rest.length <= BLOCK_BYTES) return crc32(rest, checksum);
  // Gathered first: a call for each sample would cost several times what the bytes do.
  const samples = Buffer.allocUnsafe((Math.ceil(rest.length / BLOCK_BYTES) + 1) * SAMPLE_BYTES);
  let length = 0;
  for (let at = 0; at < rest.length; at += BLOCK_BYTES) {
    length += rest.copy(samples, length, at, at + SAMPLE_BYTES);
  }
  length += rest.copy(samples, length, rest.length - SAMPLE_BYTES);
  return crc32(samples.subarray(0, length), checksum);
}

/** A record without data as bytes. @param seed the number of its segment. */
export function encodeRecord(
  { kind, ...content }: StartRecord | EndRecord | IndexRecord,
  seed: number,
): Buffer {
  const body = "json" in content ? content.json : Buffer.from(JSON.stringify(content));
  const record = Buffer.concat([Buffer.alloc(RECORD_HEAD_BYTES), body]);
  writeHead(record, { kind, seed, data: body.subarray(DATA_FIELDS_BYTES) });
  return record;
}

export interface RecordHead {
  readonly kind: SegmentRecord["kind"];
  /** The number of its segment. */
  readonly seed: number;
  /** What follows the start. */
  readonly data: Buffer;
}

/** Writes the fixed part of a record. @param start that part, and as much of the body as fields of data take. */
export function writeHead(start: Buffer, { kind, seed, data }: RecordHead): void {
  const fields = start.subarray(RECORD_HEAD_BYTES, RECORD_HEAD_BYTES + DATA_FIELDS_BYTES);
  start.writeUInt32LE(fields.length + data.length, 0);
  start.writeUInt8(KINDS.indexOf(kind), 4);
  start.writeUInt32LE(checksumOf(crc32(start.subarray(0, 5), seed), fields, data), 5);
}

/** Writes what stands before the data of a record, except for its head. */
export function writeDataFields(start: Buffer, record: Omit<DataRecord, "kind" | "data">): void {
  start.writeUInt32LE(record.number, RECORD_HEAD_BYTES);
  start.writeUInt8(STREAMS.indexOf(record.stream), RECORD_HEAD_BYTES + 4);
  start.writeDoubleLE(record.offset, RECORD_HEAD_BYTES + 5);
  start.writeDoubleLE(record.atMs, RECORD_HEAD_BYTES + 13);
}

/** Bytes of the record that begins at `at`; undefined when not even its head is there. */
export function recordBytes(bytes: Buffer, at: number): number | undefined {
  return bytes.length - at < RECORD_HEAD_BYTES ? undefined : RECORD_HEAD_BYTES + bytes.readUInt32LE(at);
}

/**
 * The whole record of segment `seed` that begins at `at`; undefined when there is none: torn, damaged, of
 * another segment, or of a kind that nobody knows. Its data are a view of `bytes`.
 */
export function decodeRecord(bytes: Buffer, at: number, seed: number): SegmentRecord | undefined {
  const length = recordBytes(bytes, at);
  if (length === undefined || bytes.length - at < length) return undefined;
  const body = bytes.subarray(at + RECORD_HEAD_BYTES, at + length);
  const headSum = crc32(bytes.subarray(at, at + 5), seed);
  const [fields, data] = [body.subarray(0, DATA_FIELDS_BYTES), body.subarray(DATA_FIELDS_BYTES)];
  if (checksumOf(headSum, fields, data) !== bytes.readUInt32LE(at + 5)) return undefined;
  const kind = KINDS[bytes.readUInt8(at + 4)];
  switch (kind) {
    case "data":
      return decodeData(body);
    case "start":
    case "end":
      return decodeJson(kind, body);
    case "index":
      return { kind, json: body };
    default:
      return undefined;
  }
}

function decodeData(body: Buffer): DataRecord | undefined {
  if (body.length < DATA_FIELDS_BYTES) return undefined;
  const stream = STREAMS[body.readUInt8(4)];
  const offset = body.readDoubleLE(5);
  if (stream === undefined || !Number.isSafeInteger(offset) || offset < 0) return undefined;
  return {
    kind: "data",
    number: body.readUInt32LE(0),
    stream,
    offset,
    atMs: body.readDoubleLE(13),
    data: body.subarray(DATA_FIELDS_BYTES),
  };
}

function decodeJson(kind: "start" | "end", body: Buffer): StartRecord | EndRecord | undefined {
  const json = parseJson(body);
  if (kind === "start") {
    const start = startJson.safeParse(json);
    return start.success ? { kind, ...start.data } : undefined;
  }
  const end = endJson.safeParse(json);
  return end.success ? { kind, ...end.data } : undefined;
}

/** JSON from a file that anything may have happened to; undefined when it is none. */
export function parseJson(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString()) as unknown;
  } catch {
    return undefined;
  }
}
