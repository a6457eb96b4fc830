import { crc32 } from "node:zlib";
import type { Exit, Output } from "@coppice/core/backend";
import { z } from "zod";
import type { CommandEnd } from "../contract/commands.js";

/**
 * The records of a segment file. After `SEGMENT_MAGIC` they follow one another, each
 *
 *     length of the body uint32 | kind uint8 | CRC-32 of the body and of both uint32 | body
 *
 * all little-endian. The checksum detects a record that a crash left incomplete: cut, filled with zeros, or with old
 * disk contents. For a large body the checksum covers the beginning of every block and the end: crashes lose whole
 * blocks, and reading every byte again would slow down a flood of output. It is seeded with the number of the segment,
 * because a reused file still holds records of an old segment after the new ones.
 */
export const SEGMENT_MAGIC: Buffer = Buffer.from("coplog\0\u0002", "latin1");

/** Introduces the number of a command in its segment. */
export type StartRecord = Readonly<z.infer<typeof startJson>> & { readonly kind: "start" };

export interface DataRecord {
  readonly kind: "data";
  readonly number: number;
  readonly stream: Output["stream"];
  /** Bytes that the command wrote before, on all streams together. */
  readonly offset: number;
  readonly atMs: number;
  readonly data: Buffer;
}

export type EndRecord = Readonly<z.infer<typeof endJson>> & { readonly kind: "end" };

/** Footer of a finished segment, see SegmentIndex. */
export interface IndexRecord {
  readonly kind: "index";
  readonly json: Buffer;
}

export type SegmentRecord = StartRecord | DataRecord | EndRecord | IndexRecord;

export const RECORD_HEAD_BYTES = 9;

// Smallest block of common file systems.
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
  z
    .object({ signal: z.custom<NodeJS.Signals>((value) => /^SIG\w+$/.test(String(value))) })
    .extend({ coreDumped: z.boolean().default(false) }),
]);

export const CommandEndJson: z.ZodType<CommandEnd> = z
  .object({ exit: exit.optional(), outcome: z.enum(["ok", "error", "killed"]), endedAtMs: z.number() })
  .transform(({ exit, ...end }) => ({ exit, ...end }));

const startJson = z.object({
  /** Stands for the command in the other records of this segment. */
  number: z.int().min(0),
  id: z.string(),
  pid: z.int(),
  path: z.string(),
  tag: z.string().optional(),
  startedAtMs: z.number(),
  /** Offset of the command's output at this point. */
  offset: z.int().min(0),
});

const endJson = z.object({
  number: z.int().min(0),
  /** All that the command wrote. */
  offset: z.int().min(0),
  end: CommandEndJson,
});

/** Checksum by which `decodeRecord` verifies a record, over its length, kind and body; of a long body over samples. */
function checksumOf(seed: number, start: Buffer, rest: Buffer): number {
  const checksum = crc32(start, seed);
  if (rest.length <= BLOCK_BYTES) return crc32(rest, checksum);
  // The samples are copied into one buffer: a crc32 call for each costs several times the checksum of its bytes.
  const samples = Buffer.allocUnsafe((Math.ceil(rest.length / BLOCK_BYTES) + 1) * SAMPLE_BYTES);
  let length = 0;
  for (let at = 0; at < rest.length; at += BLOCK_BYTES)
    length += rest.copy(samples, length, at, at + SAMPLE_BYTES);
  length += rest.copy(samples, length, rest.length - SAMPLE_BYTES);
  return crc32(samples.subarray(0, length), checksum);
}

/** Encodes a record without data. @param seed number of its segment. */
export function encodeRecord(
  { kind, ...content }: StartRecord | EndRecord | IndexRecord,
  seed: number,
): Buffer {
  const body = "json" in content ? content.json : Buffer.from(JSON.stringify(content));
  const record = Buffer.concat([Buffer.alloc(RECORD_HEAD_BYTES), body]);
  writeHead(record, { kind, seed, data: body.subarray(DATA_FIELDS_BYTES) });
  return record;
}

interface RecordHead {
  readonly kind: SegmentRecord["kind"];
  readonly seed: number;
  /** Data after `start`. */
  readonly data: Buffer;
}

/** Writes the fixed part of a record. @param start the head and the fields before the data. */
export function writeHead(start: Buffer, { kind, seed, data }: RecordHead): void {
  const fields = start.subarray(RECORD_HEAD_BYTES, RECORD_HEAD_BYTES + DATA_FIELDS_BYTES);
  start.writeUInt32LE(fields.length + data.length, 0);
  start.writeUInt8(KINDS.indexOf(kind), 4);
  start.writeUInt32LE(checksumOf(crc32(start.subarray(0, 5), seed), fields, data), 5);
}

/** Writes the fields of a data record between its head and its data. */
export function writeDataFields(start: Buffer, record: Omit<DataRecord, "kind" | "data">): void {
  start.writeUInt32LE(record.number, RECORD_HEAD_BYTES);
  start.writeUInt8(STREAMS.indexOf(record.stream), RECORD_HEAD_BYTES + 4);
  start.writeDoubleLE(record.offset, RECORD_HEAD_BYTES + 5);
  start.writeDoubleLE(record.atMs, RECORD_HEAD_BYTES + 13);
}

/** Bytes of the record that begins at `at`; undefined when its head is incomplete. */
export function recordBytes(bytes: Buffer, at: number): number | undefined {
  return bytes.length - at < RECORD_HEAD_BYTES ? undefined : RECORD_HEAD_BYTES + bytes.readUInt32LE(at);
}

/**
 * The record of segment `seed` that begins at `at`; undefined when it is incomplete, damaged, of another segment, or of
 * an unknown kind. Its data are a view of `bytes`.
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
  if (kind === "end") {
    const { data } = endJson.safeParse(json);
    return data && { kind, ...data };
  }
  const { data } = startJson.safeParse(json);
  return data && { kind, ...data };
}

/** JSON from an untrusted file; undefined when it is invalid. */
export function parseJson(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString()) as unknown;
  } catch {
    return undefined;
  }
}
