import type { Output } from "@coppice/core/backend";
import type { OutputPiece } from "../commands.js";
import {
  DATA_START_BYTES,
  type EndRecord,
  type StartRecord,
  encodeRecord,
  writeDataFields,
  writeHead,
} from "./segment-codec.js";
import type { SpareBuffers } from "./spare-buffers.js";
import type { SegmentIndex } from "./segment-index.js";

// Adjacent pieces are one record up to this size: what a reader has to hold at a time.
const RECORD_DATA_BYTES = 256 * 1024;
// Pieces from here on are records of their own and written from where they are. Copying a smaller one costs less
// than it would to hold on to it.
const LEAST_HELD_BYTES = 16 * 1024;
const FIRST_BUFFER_BYTES = 16 * 1024;
// What a flood of small pieces fills at once: growing there step by step would copy everything as often.
const LARGE_BUFFER_BYTES = 1280 * 1024;

/** A data record that may still grow. */
interface OpenRecord {
  readonly number: number;
  readonly stream: Output["stream"];
  readonly offset: number;
  /** Where it begins in the buffer. */
  readonly at: number;
  length: number;
}

type Noted = Parameters<SegmentIndex["add"]>[0];

export interface LogBatchOptions {
  /** Number of the segment that it is for. */
  readonly seed: number;
  /** Where a large buffer is taken from, once a small one does not do. */
  readonly spares: SpareBuffers;
}

/** Records that are written together. Small pieces of output are copied into it at once, large ones are held. */
export class LogBatch {
  readonly #options: LogBatchOptions;
  readonly #notes: { readonly record: Noted; readonly from: number; readonly to: number }[] = [];
  /** What stands between two stretches of the buffer, each with the end of the one before it. */
  readonly #held: { readonly data: Buffer; readonly after: number }[] = [];
  #buffer: Buffer = Buffer.allocUnsafeSlow(FIRST_BUFFER_BYTES);
  #filled = 0;
  #heldBytes = 0;
  #open: OpenRecord | undefined;
  #dataBytes = 0;

  constructor(options: LogBatchOptions) {
    this.#options = options;
  }

  /** Size of its records. */
  get bytes(): number {
    return this.#filled + this.#heldBytes;
  }

  /** Size of the output in them. */
  get dataBytes(): number {
    return this.#dataBytes;
  }

  /** Gives its memory back; nothing of it may be used any more. */
  release(): void {
    this.#options.spares.give(this.#buffer);
    this.#buffer = Buffer.alloc(0);
    this.#held.length = 0;
    this.#filled = 0;
    this.#heldBytes = 0;
  }

  addRecord(record: StartRecord | EndRecord): void {
    this.#finishRecord();
    const bytes = encodeRecord(record, this.#options.seed);
    const from = this.bytes;
    this.#makeRoom(bytes.length);
    bytes.copy(this.#buffer, this.#filled);
    this.#filled += bytes.length;
    this.#notes.push({ record, from, to: this.bytes });
  }

  addData(number: number, { stream, offset, data }: OutputPiece, atMs: number): void {
    for (let taken = 0; taken < data.length;) {
      const at = offset + taken;
      const part = data.subarray(taken, taken + RECORD_DATA_BYTES);
      const place = { number, stream, offset: at, atMs };
      taken += part.length >= LEAST_HELD_BYTES ? this.#hold(place, part) : this.#copy(place, part);
    }
  }

  /** The records as bytes, in their order; nothing can be added any more. */
  finish(): readonly Buffer[] {
    this.#finishRecord();
    const parts: Buffer[] = [];
    let from = 0;
    for (const { data, after } of this.#held) {
      parts.push(this.#buffer.subarray(from, after), data);
      from = after;
    }
    if (this.#filled > from) parts.push(this.#buffer.subarray(from, this.#filled));
    return parts;
  }

  /** Tells the index of the segment what was appended to it. */
  enter(index: SegmentIndex): void {
    const base = index.endsAt;
    for (const { record, from, to } of this.#notes) index.add(record, base + from, base + to);
  }

  /** A record of its own for data that stay where they are. @returns how much of them it took. */
  #hold(place: DataPlace, part: Uint8Array): number {
    this.#finishRecord();
    const { number, offset } = place;
    const data = Buffer.from(part.buffer, part.byteOffset, part.byteLength);
    const from = this.bytes;
    const start = this.#start(place);
    writeHead(start, { kind: "data", seed: this.#options.seed, data });
    this.#held.push({ data, after: this.#filled });
    this.#heldBytes += data.length;
    this.#dataBytes += data.length;
    this.#notes.push({ record: { kind: "data", number, offset, length: data.length }, from, to: this.bytes });
    return data.length;
  }

  /** Adds to the record of the piece before, or begins one. @returns how much it took. */
  #copy(place: DataPlace, part: Uint8Array): number {
    const open = this.#growing(place) ?? this.#begin(place);
    const data = part.subarray(0, RECORD_DATA_BYTES - open.length);
    this.#makeRoom(data.length);
    this.#buffer.set(data, this.#filled);
    this.#filled += data.length;
    open.length += data.length;
    this.#dataBytes += data.length;
    return data.length;
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
    const open = { number, stream, offset, at: this.#filled, length: 0 };
    this.#start(place);
    this.#open = open;
    return open;
  }

  /** What stands before the data of a record, without its head. */
  #start(place: DataPlace): Buffer {
    this.#makeRoom(DATA_START_BYTES);
    const start = this.#buffer.subarray(this.#filled, this.#filled + DATA_START_BYTES);
    writeDataFields(start, place);
    this.#filled += DATA_START_BYTES;
    return start;
  }

  #finishRecord(): void {
    const open = this.#open;
    if (open === undefined) return;
    this.#open = undefined;
    const { number, offset, at, length } = open;
    const data = this.#buffer.subarray(at + DATA_START_BYTES, this.#filled);
    const start = this.#buffer.subarray(at, at + DATA_START_BYTES);
    writeHead(start, { kind: "data", seed: this.#options.seed, data });
    // Nothing is held between the beginning of a record that grows and its end.
    const from = at + this.#heldBytes;
    this.#notes.push({ record: { kind: "data", number, offset, length }, from, to: this.bytes });
  }

  #makeRoom(bytes: number): void {
    const { spares } = this.#options;
    const needed = this.#filled + bytes;
    if (needed <= this.#buffer.length) return;
    const spare = spares.take();
    const larger =
      spare !== undefined && spare.length >= needed
        ? spare
        : Buffer.allocUnsafeSlow(needed <= LARGE_BUFFER_BYTES ? LARGE_BUFFER_BYTES : 2 * needed);
    this.#buffer.copy(larger, 0, 0, this.#filled);
    spares.give(this.#buffer);
    this.#buffer = larger;
  }
}

/** Whose output, and which of it. */
interface DataPlace {
  readonly number: number;
  readonly stream: Output["stream"];
  readonly offset: number;
  readonly atMs: number;
}
