import { z } from "zod";
import {
  CommandEndJson,
  type DataRecord,
  type EndRecord,
  type StartRecord,
  parseJson,
} from "./segment-codec.js";

// At most so much of a file is read before the requested record.
const MARK_EVERY_BYTES = 256 * 1024;

const entryJson = z.object({
  number: z.int(),
  id: z.string(),
  pid: z.int(),
  path: z.string(),
  tag: z.string().optional(),
  startedAtMs: z.number(),
  /** Offsets of its first byte here, and after its last. */
  first: z.int(),
  next: z.int(),
  /** All output so far, kept or not. */
  outputBytes: z.int(),
  hasData: z.boolean(),
  /** Pairs: an offset, and the position of the record that begins with it. */
  marks: z.array(z.int()),
  end: CommandEndJson.optional().transform((value) => value),
});
const indexJson = z.object({ endsAt: z.int(), commands: z.array(entryJson) });

type Entry = z.infer<typeof entryJson>;

/** Entry of a command in the index of one segment. */
export type IndexedCommand = Readonly<Omit<Entry, "hasData" | "marks">>;

/** Commands in a segment and the positions of their records, so that a reader knows what to read. */
export class SegmentIndex {
  readonly #entries = new Map<number, Entry>();
  /** Where the last read of a command ended. A follower goes on there: the output of others since its mark is long. */
  readonly #reads = new Map<number, { readonly offset: number; readonly position: number }>();
  /** End of the last complete record. */
  endsAt: number;

  /** @param startsAt position of the first record. */
  constructor(startsAt: number) {
    this.endsAt = startsAt;
  }

  /** In order of appearance. */
  commands(): IterableIterator<IndexedCommand> {
    return this.#entries.values();
  }

  find(id: string): IndexedCommand | undefined {
    for (const command of this.commands()) if (command.id === id) return command;
    return undefined;
  }

  get size(): number {
    return this.#entries.size;
  }

  /** @param position of the record. @param endsAt its end. */
  add(record: StartRecord | EndRecord | IndexedData, position: number, endsAt: number): void {
    this.endsAt = endsAt;
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
    if (marked === undefined || position - marked >= MARK_EVERY_BYTES)
      entry.marks.push(record.offset, position);
  }

  /** Position from which to read the byte at `offset` of a command; undefined when it has no data from there on. */
  positionOf(number: number, offset: number): number | undefined {
    const entry = this.#entries.get(number);
    if (entry === undefined || entry.next <= offset) return undefined;
    let position = entry.marks[1];
    for (let at = 0; at < entry.marks.length && (entry.marks[at] ?? 0) <= offset; at += 2)
      position = entry.marks[at + 1];
    const read = this.#reads.get(number);
    return read !== undefined && read.offset <= offset ? Math.max(read.position, position ?? 0) : position;
  }

  /** Notes that the output of a command before `offset` was read, and that the rest comes after `position`. */
  noteRead(number: number, offset: number, position: number): void {
    this.#reads.set(number, { offset, position });
  }

  toJson(): Buffer {
    return Buffer.from(JSON.stringify({ endsAt: this.endsAt, commands: [...this.#entries.values()] }));
  }

  /** Parses the result of `toJson`; undefined when it is invalid. */
  static parse(json: Buffer): SegmentIndex | undefined {
    const parsed = indexJson.safeParse(parseJson(json));
    if (!parsed.success) return undefined;
    const index = new SegmentIndex(parsed.data.endsAt);
    for (const entry of parsed.data.commands) index.#entries.set(entry.number, entry);
    return index;
  }
}

type IndexedData = Pick<DataRecord, "kind" | "number" | "offset"> & { readonly length: number };
