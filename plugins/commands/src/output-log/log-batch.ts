import type { Output } from "@coppice/core/backend";
import type { OutputPiece } from "../commands.js";
import {
  DATA_FIELDS_BYTES,
  type EndRecord,
  RECORD_HEAD_BYTES,
  type StartRecord,
  encodeRecord,
  writeDataFields,
  writeHead,
} from "./segment-codec.js";
import type { SpareBuffers } from "./spare-buffers.js";
import type { SegmentIndex } from "./segment-index.js";

// Adjacent pieces are one record up to this size: what a reader has to hold at a time.
const RECORD_DATA_BYTES = 256 * 1024;
const FIRST_BUFFER_BYTES = 16 * 1024;
// What a flood fills at once: growing there step by step would copy everything as often.
const LARGE_BUFFER_BYTES = 1280 * 1024;

/** A data record that may still grow. */
interface OpenRecord {
  readonly number: number;
  readonly stream: Output["stream"];
  readonly offset: number;
  readonly at: number;
  length: number;
}

type Noted = Parameters<SegmentIndex["add"]>[0];

/**
 * Records that are written together. What is added is copied at once: holding on to a command's buffers
 * until the disk has them would cost the garbage collector more than the copy.
 */
export class LogBatch {
  readonly #notes: { readonly record: Noted; readonly from: number; readonly to: number }[] = [];
  readonly #spares: SpareBuffers;
  #buffer: Buffer = Buffer.allocUnsafeSlow(FIRST_BUFFER_BYTES);
  #filled = 0;
  #open: OpenRecord | undefined;
  #dataBytes = 0;

  /** @param spares where a large buffer is taken from, once a small one does not do. */
  constructor(spares: SpareBuffers) {
    this.#spares = spares;
  }

  /** Size of its records. */
  get bytes(): number {
    return this.#filled;
  }

  /** Size of the output in them. */
  get dataBytes(): number {
    return this.#dataBytes;
  }

  /** Gives its memory back; nothing of it may be used any more. */
  release(): void {
    this.#spares.give(this.#buffer);
    this.#buffer = Buffer.alloc(0);
    this.#filled = 0;
  }

  addRecord(record: StartRecord | EndRecord): void {
    this.#finishRecord();
    const bytes = encodeRecord(record);
    this.#makeRoom(bytes.length);
    bytes.copy(this.#buffer, this.#filled);
    const from = this.#filled;
    this.#filled += bytes.length;
    this.#notes.push({ record, from, to: this.#filled });
  }

  addData(number: number, { stream, offset, data }: OutputPiece, atMs: number): void {
    for (let taken = 0; taken < data.length;) {
      const at = offset + taken;
      const open = this.#growing(number, stream, at) ?? this.#beginData({ number, stream, offset: at, atMs });
      this.#open = open;
      const part = data.subarray(taken, taken + RECORD_DATA_BYTES - open.length);
      this.#makeRoom(part.length);
      this.#buffer.set(part, this.#filled);
      this.#filled += part.length;
      open.length += part.length;
      this.#dataBytes += part.length;
      taken += part.length;
    }
  }

  /** The records as bytes; nothing can be added any more. */
  finish(): Buffer {
    this.#finishRecord();
    return this.#buffer.subarray(0, this.#filled);
  }

  /** Tells the index of the segment what was appended to it. */
  enter(index: SegmentIndex): void {
    const base = index.endsAt;
    for (const { record, from, to } of this.#notes) index.add(record, base + from, base + to);
  }

  /** The record that this piece continues. */
  #growing(number: number, stream: Output["stream"], offset: number): OpenRecord | undefined {
    const open = this.#open;
    const isNext =
      open !== undefined &&
      open.number === number &&
      open.stream === stream &&
      open.offset + open.length === offset &&
      open.length < RECORD_DATA_BYTES;
    return isNext ? open : undefined;
  }

  #beginData(record: {
    readonly number: number;
    readonly stream: Output["stream"];
    readonly offset: number;
    readonly atMs: number;
  }): OpenRecord {
    this.#finishRecord();
    const at = this.#filled;
    this.#makeRoom(RECORD_HEAD_BYTES + DATA_FIELDS_BYTES);
    const fields = this.#buffer.subarray(at + RECORD_HEAD_BYTES, at + RECORD_HEAD_BYTES + DATA_FIELDS_BYTES);
    writeDataFields(fields, record);
    this.#filled += RECORD_HEAD_BYTES + DATA_FIELDS_BYTES;
    const { number, stream, offset } = record;
    return { number, stream, offset, at, length: 0 };
  }

  #finishRecord(): void {
    const open = this.#open;
    if (open === undefined) return;
    this.#open = undefined;
    const { number, offset, at, length } = open;
    const body = this.#buffer.subarray(at + RECORD_HEAD_BYTES, this.#filled);
    writeHead(this.#buffer.subarray(at, at + RECORD_HEAD_BYTES), "data", body);
    this.#notes.push({ record: { kind: "data", number, offset, length }, from: at, to: this.#filled });
  }

  #makeRoom(bytes: number): void {
    const needed = this.#filled + bytes;
    if (needed <= this.#buffer.length) return;
    const spare = this.#spares.take();
    const larger =
      spare !== undefined && spare.length >= needed
        ? spare
        : Buffer.allocUnsafeSlow(needed <= LARGE_BUFFER_BYTES ? LARGE_BUFFER_BYTES : 2 * needed);
    this.#buffer.copy(larger, 0, 0, this.#filled);
    this.#spares.give(this.#buffer);
    this.#buffer = larger;
  }
}
