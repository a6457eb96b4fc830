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
// Pieces from here on are written from where they are. Copying a smaller one costs less than it would to hold on to it.
const LEAST_HELD_BYTES = 16 * 1024;
/** A batch gets nothing more once it has so much. */
export const LARGEST_BATCH_BYTES: number = 2 * 1024 * 1024;
const FIRST_BUFFER_BYTES = 16 * 1024;
// What a flood of small pieces fills at once: growing there step by step would copy everything as often.
const LARGE_BUFFER_BYTES = LARGEST_BATCH_BYTES + 256 * 1024;

/** A data record that may still grow. */
interface OpenRecord {
  readonly number: number;
  readonly stream: Output["stream"];
  readonly offset: number;
  /** Where it begins: in the buffer, among what is held, and among the bytes of the batch. */
  readonly at: number;
  readonly heldBefore: number;
  readonly from: number;
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
  /** What stands between two stretches of the buffer, each with the end of the one before it; in one place, several. */
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
      const place = { number, stream, offset: offset + taken, atMs };
      const open = this.#growing(place) ?? this.#begin(place);
      const part = data.subarray(taken, taken + RECORD_DATA_BYTES - open.length);
      if (part.length >= LEAST_HELD_BYTES) this.#hold(part);
      else this.#copy(part);
      open.length += part.length;
      taken += part.length;
    }
    this.#dataBytes += data.length;
  }

  /** The records as bytes, in their order; nothing can be added any more. */
  finish(): readonly Buffer[] {
    this.#finishRecord();
    return this.#parts(0, 0);
  }

  /** Tells the index of the segment what was appended to it. */
  enter(index: SegmentIndex): void {
    const base = index.endsAt;
    for (const { record, from, to } of this.#notes) index.add(record, base + from, base + to);
  }

  /** Takes data in that stay where they are. */
  #hold(part: Uint8Array): void {
    this.#held.push({
      data: Buffer.from(part.buffer, part.byteOffset, part.byteLength),
      after: this.#filled,
    });
    this.#heldBytes += part.byteLength;
  }

  #copy(part: Uint8Array): void {
    this.#makeRoom(part.length);
    this.#buffer.set(part, this.#filled);
    this.#filled += part.length;
  }

  /** What was added since the buffer was filled up to `at` and so many parts were held. */
  #parts(at: number, heldBefore: number): readonly Buffer[] {
    const parts: Buffer[] = [];
    let from = at;
    for (let index = heldBefore; index < this.#held.length; index++) {
      const held = this.#held[index];
      if (held === undefined) break;
      if (held.after > from) parts.push(this.#buffer.subarray(from, held.after));
      parts.push(held.data);
      from = held.after;
    }
    if (this.#filled > from) parts.push(this.#buffer.subarray(from, this.#filled));
    return parts;
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
    const position = { at: this.#filled, heldBefore: this.#held.length, from: this.bytes };
    this.#makeRoom(DATA_START_BYTES);
    writeDataFields(this.#buffer.subarray(this.#filled, this.#filled + DATA_START_BYTES), place);
    this.#filled += DATA_START_BYTES;
    const open = { number, stream, offset, ...position, length: 0 };
    this.#open = open;
    return open;
  }

  #finishRecord(): void {
    const open = this.#open;
    if (open === undefined) return;
    this.#open = undefined;
    const { number, offset, at, heldBefore, from, length } = open;
    const data = this.#parts(at + DATA_START_BYTES, heldBefore);
    const start = this.#buffer.subarray(at, at + DATA_START_BYTES);
    writeHead(start, { kind: "data", seed: this.#options.seed, data });
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
