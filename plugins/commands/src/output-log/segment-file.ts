import { type FileHandle, open } from "node:fs/promises";
import { ignoring } from "@coppice/core";
import type { Segment } from "./sandbox-log.js";
import {
  decodeRecord,
  encodeRecord,
  RECORD_HEAD_BYTES,
  recordBytes,
  SEGMENT_MAGIC,
  type SegmentRecord,
} from "./segment-codec.js";
import { SegmentIndex } from "./segment-index.js";

interface PlacedRecord {
  readonly record: SegmentRecord;
  readonly position: number;
  readonly endsAt: number;
}

type SegmentPlace = Pick<Segment, "path" | "number">;

interface RecordRange {
  readonly from: number;
  /** End of the range; the end of the file when absent. */
  readonly to?: number | undefined;
}

// A record of the largest size that writers make, and its fields.
const READ_BYTES = 260 * 1024;
const TRAILER_MAGIC = Buffer.from("copindex", "latin1");
const TRAILER_BYTES = 8 + TRAILER_MAGIC.length;

/** Encodes the footer of a segment: its index, and a trailer with the index's offset. */
export function encodeFooter(index: SegmentIndex, number: number): Buffer {
  const trailer = Buffer.alloc(TRAILER_BYTES);
  trailer.writeDoubleLE(index.endsAt, 0);
  TRAILER_MAGIC.copy(trailer, 8);
  return Buffer.concat([encodeRecord({ kind: "index", json: index.toJson() }, number), trailer]);
}

/** The records of a file up to the first incomplete one. @throws Error of the file system. */
export async function* readRecords(
  { path, number }: SegmentPlace,
  range: RecordRange,
): AsyncGenerator<PlacedRecord> {
  await using file = await open(path, "r");
  yield* new SegmentFile(file, number).records(range);
}

/** The index of a segment file: from its footer, or from its records if it was never finished. @throws Error of the file system. */
async function readIndex({ path, number }: SegmentPlace): Promise<SegmentIndex> {
  await using file = await open(path, "r");
  const segment = new SegmentFile(file, number);
  return (await segment.indexInFooter()) ?? (await segment.indexOfRecords());
}

/** An open file, with the number that its records are checked by. */
class SegmentFile {
  readonly #file: FileHandle;
  readonly #number: number;

  constructor(file: FileHandle, number: number) {
    this.#file = file;
    this.#number = number;
  }

  async indexInFooter(): Promise<SegmentIndex | undefined> {
    const { size } = await this.#file.stat();
    const trailer = await readAt(this.#file, size - TRAILER_BYTES, TRAILER_BYTES);
    if (trailer === undefined || !trailer.subarray(8).equals(TRAILER_MAGIC)) return undefined;
    const at = trailer.readDoubleLE(0);
    if (!Number.isSafeInteger(at) || at < 0) return undefined;
    const bytes = await readAt(this.#file, at, size - TRAILER_BYTES - at);
    const record = bytes && decodeRecord(bytes, 0, this.#number);
    const index = record?.kind === "index" ? SegmentIndex.parse(record.json) : undefined;
    return index?.endsAt === at ? index : undefined;
  }

  async indexOfRecords(): Promise<SegmentIndex> {
    const index = new SegmentIndex(SEGMENT_MAGIC.length);
    const magic = await readAt(this.#file, 0, SEGMENT_MAGIC.length);
    if (magic === undefined || !magic.equals(SEGMENT_MAGIC)) return index;
    for await (const { record, position, endsAt } of this.records({ from: SEGMENT_MAGIC.length })) {
      if (record.kind === "index") break;
      const entry = record.kind === "data" ? { ...record, length: record.data.length } : record;
      index.add(entry, position, endsAt);
    }
    return index;
  }

  async *records({ from, to }: RecordRange): AsyncGenerator<PlacedRecord> {
    // The size is read once: bytes appended later may be incomplete.
    const end = Math.min(to ?? Infinity, (await this.#file.stat()).size);
    for (let position = from; position < end;) {
      const bytes = await readAt(this.#file, position, Math.min(READ_BYTES, end - position));
      if (bytes === undefined) return;
      let at = 0;
      for (;;) {
        const length = recordBytes(bytes, at);
        if (length === undefined || at + length > bytes.length) break;
        const record = decodeRecord(bytes, at, this.#number);
        if (record === undefined) return;
        yield { record, position: position + at, endsAt: position + at + length };
        at += length;
      }
      if (at === 0) {
        const placed = await this.#readLarge(position, end);
        if (placed === undefined) return;
        yield placed;
        at = placed.endsAt - position;
      }
      position += at;
    }
  }

  /** A record that is larger than the read buffer. */
  async #readLarge(position: number, end: number): Promise<PlacedRecord | undefined> {
    const head = await readAt(this.#file, position, RECORD_HEAD_BYTES);
    const length = head && recordBytes(head, 0);
    // A length beyond the end of the file is that of a torn record, and may be any number.
    if (length === undefined || position + length > end) return undefined;
    const bytes = await readAt(this.#file, position, length);
    const record = bytes && decodeRecord(bytes, 0, this.#number);
    return record && { record, position, endsAt: position + length };
  }
}

/** Exactly these bytes; undefined where the file does not have them. */
async function readAt(file: FileHandle, position: number, length: number): Promise<Buffer | undefined> {
  if (position < 0 || length <= 0) return undefined;
  const bytes = Buffer.allocUnsafeSlow(length);
  let filled = 0;
  while (filled < length) {
    const { bytesRead } = await file.read(bytes, filled, length - filled, position + filled);
    if (bytesRead === 0) return undefined;
    filled += bytesRead;
  }
  return bytes;
}

/** A cache of finished segments' indices, with the least recently used ones evicted. */
export class IndexCache {
  readonly #maxCommands: number;
  readonly #indices = new Map<Segment, SegmentIndex>();
  #commands = 0;

  /** @param maxCommands limit of the commands in all cached indices together. */
  constructor(maxCommands: number) {
    this.#maxCommands = maxCommands;
  }

  /** The index of a segment, undefined when its file is gone. @throws Error of the file system. */
  async load(segment: Segment): Promise<SegmentIndex | undefined> {
    // A segment that is being written has its index in memory.
    if (segment.index !== undefined) return segment.index;
    const kept = this.#indices.get(segment);
    if (kept !== undefined) {
      this.#indices.delete(segment);
      this.#indices.set(segment, kept);
      return kept;
    }
    if (segment.isGone) return undefined;
    segment.readers += 1;
    try {
      const index = await readIndex(segment);
      if (!segment.isGone) this.#keep(segment, index);
      return index;
    } catch (error) {
      return ignoring("ENOENT")(error);
    } finally {
      segment.readers -= 1;
    }
  }

  forget(segment: Segment): void {
    const index = this.#indices.get(segment);
    if (index === undefined) return;
    this.#indices.delete(segment);
    this.#commands -= costOf(index);
  }

  #keep(segment: Segment, index: SegmentIndex): void {
    // Another call may have read it at the same time.
    this.forget(segment);
    this.#indices.set(segment, index);
    this.#commands += costOf(index);
    for (const oldest of this.#indices.keys()) {
      if (this.#commands <= this.#maxCommands || oldest === segment) break;
      this.forget(oldest);
    }
  }
}

function costOf(index: SegmentIndex): number {
  return index.size + 1;
}
