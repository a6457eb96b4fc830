import { join } from "node:path";
import type { SegmentIndex } from "./segment-index.js";

/** A file of the log of one sandbox. */
export interface Segment {
  /** Grows from one segment of a sandbox to the next; also over restarts. */
  readonly number: number;
  readonly path: string;
  bytes: number;
  /** Milliseconds since the Unix epoch. */
  writtenAtMs: number;
  /** Set while the segment is being written; afterwards it is in the file. */
  index: SegmentIndex | undefined;
  /** How many are reading its file just now. */
  readers: number;
  /** No part of the log any more: what its file has in it may be something else. */
  isGone: boolean;
}

const SEGMENT_NAME = /^(\d{10})\.log$/;

/** The segments of one sandbox, oldest first: what there is, not what is in it. */
export class SandboxLog {
  readonly sandboxId: string;
  readonly directory: string;
  readonly #segments: Segment[] = [];
  #lastNumber = 0;

  constructor(sandboxId: string, directory: string) {
    this.sandboxId = sandboxId;
    this.directory = directory;
  }

  get segments(): readonly Segment[] {
    return this.#segments;
  }

  /** Size of all of them. */
  get bytes(): number {
    return this.#segments.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** A segment that is about to be made. It has a place in the order from now on. */
  next(nowMs: number): Segment {
    this.#lastNumber += 1;
    const name = `${String(this.#lastNumber).padStart(10, "0")}.log`;
    return {
      number: this.#lastNumber,
      path: join(this.directory, name),
      bytes: 0,
      writtenAtMs: nowMs,
      index: undefined,
      readers: 0,
      isGone: false,
    };
  }

  add(segment: Segment): void {
    this.#segments.push(segment);
  }

  /** Takes over a file that a server before this one left. Names that are no segment's are left alone. */
  adopt(name: string, { bytes, writtenAtMs }: Pick<Segment, "bytes" | "writtenAtMs">): void {
    const [, digits] = SEGMENT_NAME.exec(name) ?? [];
    if (digits === undefined) return;
    const number = Number(digits);
    this.#lastNumber = Math.max(this.#lastNumber, number);
    const path = join(this.directory, name);
    const facts = { index: undefined, readers: 0, isGone: false };
    this.#segments.push({ number, path, bytes, writtenAtMs, ...facts });
    this.#segments.sort((one, other) => one.number - other.number);
  }

  /** False when it was gone already. */
  delete(segment: Segment): boolean {
    const at = this.#segments.indexOf(segment);
    if (at >= 0) this.#segments.splice(at, 1);
    segment.isGone = true;
    return at >= 0;
  }
}
