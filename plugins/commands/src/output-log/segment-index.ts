import { z } from "zod";
import type { CommandEnd } from "../contract/commands.js";
import { CommandEndJson, type SegmentRecord, type StartRecord, parseJson } from "./segment-codec.js";

/** Entry of a command in the index of one segment. */
export interface IndexedCommand extends Omit<StartRecord, "kind" | "offset"> {
  /** Offsets of the first byte of it here, and of the one after the last. */
  readonly first: number;
  readonly next: number;
  /** All that it has written so far, kept or not. */
  readonly outputBytes: number;
  readonly end: CommandEnd | undefined;
}

interface Entry extends IndexedCommand {
  first: number;
  next: number;
  outputBytes: number;
  end: CommandEnd | undefined;
  hasData: boolean;
  /** Pairs: an offset, and the position of the record that begins with it. */
  readonly marks: number[];
}

// So much of a file is read, at most, before the first record that was asked for.
const MARK_EVERY_BYTES = 256 * 1024;

const indexJson = z.object({
  endsAt: z.int(),
  commands: z.array(
    z.object({
      number: z.int(),
      id: z.string(),
      pid: z.int(),
      path: z.string(),
      tag: z.string().optional(),
      startedAtMs: z.number(),
      first: z.int(),
      next: z.int(),
      outputBytes: z.int(),
      hasData: z.boolean(),
      marks: z.array(z.int()),
      end: CommandEndJson.optional().transform((value) => value),
    }),
  ),
});

/** Which commands a segment has something of, and where: it says what to read before it is read. */
export class SegmentIndex {
  readonly #entries = new Map<number, Entry>();
  #endsAt: number;

  /** @param startsAt where the first record is. */
  constructor(startsAt: number) {
    this.#endsAt = startsAt;
  }

  /** Where the last whole record ends. */
  get endsAt(): number {
    return this.#endsAt;
  }

  /** In the order in which they first appear. */
  commands(): IterableIterator<IndexedCommand> {
    return this.#entries.values();
  }

  get size(): number {
    return this.#entries.size;
  }

  /** @param position where the record begins. @param endsAt where it ends. */
  add(
    record: Exclude<SegmentRecord, { kind: "data" }> | IndexedData,
    position: number,
    endsAt: number,
  ): void {
    this.#endsAt = endsAt;
    if (record.kind === "index") return;
    if (record.kind === "start") {
      const { kind: _, offset, ...start } = record;
      this.#entries.set(record.number, {
        ...start,
        first: offset,
        next: offset,
        outputBytes: offset,
        hasData: false,
        end: undefined,
        marks: [],
      });
      return;
    }
    const entry = this.#entries.get(record.number);
    if (entry === undefined) return;
    if (record.kind === "end") {
      entry.end = record.end;
      entry.outputBytes = record.offset;
      return;
    }
    if (!entry.hasData) entry.first = record.offset;
    entry.hasData = true;
    entry.next = record.offset + record.length;
    entry.outputBytes = entry.next;
    const marked = entry.marks.at(-1);
    if (marked === undefined || position - marked >= MARK_EVERY_BYTES) {
      entry.marks.push(record.offset, position);
    }
  }

  /** Where to begin to read for the byte at `offset` of a command; undefined when it has no data from there on. */
  positionOf(number: number, offset: number): number | undefined {
    const entry = this.#entries.get(number);
    if (entry === undefined || entry.next <= offset) return undefined;
    let position = entry.marks[1];
    for (let at = 0; at < entry.marks.length && (entry.marks[at] ?? 0) <= offset; at += 2) {
      position = entry.marks[at + 1];
    }
    return position;
  }

  /** As a file keeps it. */
  toJson(): Buffer {
    return Buffer.from(JSON.stringify({ endsAt: this.#endsAt, commands: [...this.#entries.values()] }));
  }

  /** What `toJson` gave; undefined when it is not that. */
  static parse(json: Buffer): SegmentIndex | undefined {
    const parsed = indexJson.safeParse(parseJson(json));
    if (!parsed.success) return undefined;
    const index = new SegmentIndex(parsed.data.endsAt);
    for (const entry of parsed.data.commands) index.#entries.set(entry.number, entry);
    return index;
  }
}

/** A data record as the index sees it. */
export interface IndexedData {
  readonly kind: "data";
  readonly number: number;
  readonly offset: number;
  readonly length: number;
}
