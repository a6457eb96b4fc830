import type { OutputPiece } from "../contract/commands.js";
import {
  DATA_START_BYTES,
  type DataRecord,
  encodeRecord,
  type EndRecord,
  type StartRecord,
  writeDataFields,
  writeHead,
} from "./segment-codec.js";
import type { SegmentIndex } from "./segment-index.js";

const MAX_BUFFERS = 6;
const MIN_BYTES = 512 * 1024;
const MAX_BYTES = 4 * 1024 * 1024;

/** Large buffers for reuse by all sandboxes: a flood would otherwise leave one as garbage for every MiB. */
export class SpareBuffers {
  readonly #buffers: Buffer[] = [];

  /** A buffer that is large enough for a batch, if there is any. */
  take(): Buffer | undefined {
    return this.#buffers.pop();
  }

  /** Returns a buffer. Small ones, and more than a few, are left to the garbage collector. */
  give(buffer: Buffer): void {
    const isUseful = buffer.length >= MIN_BYTES && buffer.length <= MAX_BYTES;
    if (isUseful && this.#buffers.length < MAX_BUFFERS) this.#buffers.push(buffer);
  }
}

// Adjacent pieces are one record up to this size, which a reader has to hold at a time.
const RECORD_DATA_BYTES = 256 * 1024;
/** A batch of this size takes nothing more. */
export const MAX_BATCH_BYTES: number = 2 * 1024 * 1024;
const FIRST_BUFFER_BYTES = 16 * 1024;
// A flood of small pieces fills this at once: growing step by step would copy everything as often.
const LARGE_BUFFER_BYTES = MAX_BATCH_BYTES + 256 * 1024;

/** A data record that may still grow. */
interface OpenRecord extends Pick<DataPlace, "number" | "stream" | "offset"> {
  readonly at: number;
  length: number;
}

type Noted = Parameters<SegmentIndex["add"]>[0];

/**
 * Records that are written together. Output is copied into the batch at once: keeping references costs more, because
 * objects that survive a few minor collections make V8 scan the whole heap.
 */
export class LogBatch {
  readonly #seed: number;
  readonly #spares: SpareBuffers;
  readonly #notes: { readonly record: Noted; readonly from: number; readonly to: number }[] = [];
  #buffer: Buffer = Buffer.allocUnsafeSlow(FIRST_BUFFER_BYTES);
  #open: OpenRecord | undefined;
  bytes = 0;
  dataBytes = 0;

  /** @param seed number of its segment. @param spares source of large buffers, once a small one is full. */
  constructor(seed: number, spares: SpareBuffers) {
    this.#seed = seed;
    this.#spares = spares;
  }

  /** Releases its buffer; nothing of it may be used any more. */
  release(): void {
    this.#spares.give(this.#buffer);
    this.#buffer = Buffer.alloc(0);
    this.bytes = 0;
  }

  addRecord(record: StartRecord | EndRecord): void {
    this.#finishRecord();
    const bytes = encodeRecord(record, this.#seed);
    const from = this.bytes;
    this.#makeRoom(bytes.length);
    bytes.copy(this.#buffer, this.bytes);
    this.bytes += bytes.length;
    this.#notes.push({ record, from, to: this.bytes });
  }

  addData(number: number, { stream, offset, data }: OutputPiece, atMs: number): void {
    for (let taken = 0; taken < data.length;) {
      const place = { number, stream, offset: offset + taken, atMs };
      const open = this.#growing(place) ?? this.#begin(place);
      const part = data.subarray(taken, taken + RECORD_DATA_BYTES - open.length);
      this.#makeRoom(part.length);
      this.#buffer.set(part, this.bytes);
      this.bytes += part.length;
      open.length += part.length;
      taken += part.length;
    }
    this.dataBytes += data.length;
  }

  /** The records as bytes; nothing can be added any more. */
  finish(): Buffer {
    this.#finishRecord();
    return this.#buffer.subarray(0, this.bytes);
  }

  enter(index: SegmentIndex): void {
    const base = index.endsAt;
    for (const { record, from, to } of this.#notes) index.add(record, base + from, base + to);
  }

  /** The record that a piece at this place continues. */
  #growing({ number, stream, offset }: DataPlace): OpenRecord | undefined {
    const open = this.#open;
    const isNext =
      open !== undefined &&
      open.number === number &&
      open.stream === stream &&
      open.offset + open.length === offset &&
      open.length < RECORD_DATA_BYTES;
    return isNext ? open : undefined;
  }

  #begin(place: DataPlace): OpenRecord {
    this.#finishRecord();
    const { number, stream, offset } = place;
    const open = { number, stream, offset, at: this.bytes, length: 0 };
    this.#makeRoom(DATA_START_BYTES);
    writeDataFields(this.#buffer.subarray(open.at, open.at + DATA_START_BYTES), place);
    this.bytes += DATA_START_BYTES;
    this.#open = open;
    return open;
  }

  #finishRecord(): void {
    const open = this.#open;
    if (open === undefined) return;
    this.#open = undefined;
    const { number, offset, at, length } = open;
    const start = this.#buffer.subarray(at, at + DATA_START_BYTES);
    const data = this.#buffer.subarray(at + DATA_START_BYTES, this.bytes);
    writeHead(start, { kind: "data", seed: this.#seed, data });
    this.#notes.push({ record: { kind: "data", number, offset, length }, from: at, to: this.bytes });
  }

  #makeRoom(bytes: number): void {
    const needed = this.bytes + bytes;
    if (needed <= this.#buffer.length) return;
    const spare = this.#spares.take();
    const larger =
      spare !== undefined && spare.length >= needed
        ? spare
        : Buffer.allocUnsafeSlow(needed <= LARGE_BUFFER_BYTES ? LARGE_BUFFER_BYTES : 2 * needed);
    this.#buffer.copy(larger, 0, 0, this.bytes);
    this.#spares.give(this.#buffer);
    this.#buffer = larger;
  }
}

type DataPlace = Omit<DataRecord, "kind" | "data">;
