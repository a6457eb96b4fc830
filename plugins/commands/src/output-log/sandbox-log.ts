import { extname, join } from "node:path";
import type { SegmentIndex } from "./segment-index.js";

export interface Segment {
  /** Increases from segment to segment of a sandbox, across restarts. */
  readonly number: number;
  readonly path: string;
  bytes: number;
  /** Milliseconds since the Unix epoch. */
  writtenAtMs: number;
  /** Set while the segment is being written; afterwards it is in the file. */
  index: SegmentIndex | undefined;
  readers: number;
  /** Removed from the log; its file may be reused. */
  isGone: boolean;
}

const SEGMENT_NAME = /^(\d{10})\.log$/;

/** The segments of one sandbox, oldest first, without their contents. */
export class SandboxLog {
  readonly sandboxId: string;
  readonly directory: string;
  /** Stands for the tenant whose share of all logs it takes. */
  readonly owner: string;
  readonly #segments: Segment[] = [];
  #lastNumber = 0;

  /** @param directory of this log alone; the part of its name behind a dot is the owner. */
  constructor(sandboxId: string, directory: string) {
    this.sandboxId = sandboxId;
    this.directory = directory;
    this.owner = extname(directory);
  }

  get segments(): readonly Segment[] {
    return this.#segments;
  }

  get bytes(): number {
    return this.#segments.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Adds the next segment, whose file is not created yet. */
  next(nowMs: number): Segment {
    this.#lastNumber += 1;
    return this.#segment(this.#lastNumber, { bytes: 0, writtenAtMs: nowMs });
  }

  add(segment: Segment): void {
    this.#segments.push(segment);
  }

  /** Adopts a file of an earlier server. Files that are no segments are left alone. */
  adopt(name: string, facts: Pick<Segment, "bytes" | "writtenAtMs">): void {
    const [, digits] = SEGMENT_NAME.exec(name) ?? [];
    if (digits === undefined) return;
    const number = Number(digits);
    this.#lastNumber = Math.max(this.#lastNumber, number);
    this.#segments.push(this.#segment(number, facts));
    this.#segments.sort((one, other) => one.number - other.number);
  }

  #segment(number: number, facts: Pick<Segment, "bytes" | "writtenAtMs">): Segment {
    const path = join(this.directory, `${String(number).padStart(10, "0")}.log`);
    return { number, path, ...facts, index: undefined, readers: 0, isGone: false };
  }

  /** False when it was gone already. */
  delete(segment: Segment): boolean {
    const at = this.#segments.indexOf(segment);
    if (at >= 0) this.#segments.splice(at, 1);
    segment.isGone = true;
    return at >= 0;
  }
}
