import { type Clock, messageOf } from "@coppice/core";
import type { Output } from "@coppice/core/backend";
import type { CommandEnd, OutputPiece } from "../commands.js";
import type { LogFile, LogFiles } from "./log-files.js";
import type { LogMetrics } from "./log-metrics.js";
import type { SandboxLog, Segment } from "./sandbox-log.js";
import { SEGMENT_MAGIC, encodeDataHead, encodeRecord } from "./segment-codec.js";
import { encodeFooter } from "./segment-file.js";
import { type IndexedData, SegmentIndex } from "./segment-index.js";

export interface LogWriterSettings {
  /** Size at which a segment is finished and the next one begun. */
  readonly segmentBytes: number;
  /** Output that may wait for the disk before commands do. */
  readonly bufferBytes: number;
  /** How long output is gathered before it is written. */
  readonly flushMs: number;
  /** How long the disk may take for one write before the log is given up for now. */
  readonly stallMs: number;
  /** How long the log is left alone after a failure. */
  readonly retryMs: number;
}

export interface LogWriterOptions {
  readonly log: SandboxLog;
  readonly files: LogFiles;
  readonly settings: LogWriterSettings;
  readonly clock: Clock;
  readonly metrics: LogMetrics;
  /** Told why nothing is written; undefined takes it back, after a write, or where nothing is left to write. */
  readonly onFailure: (reason: string | undefined) => void;
  /** Called after a segment was finished, with its size. */
  readonly onRotate: (bytes: number) => void;
}

/** What the log says of a command besides its output. */
export interface CommandHeading {
  readonly id: string;
  readonly pid: number;
  readonly path: string;
  readonly tag: string | undefined;
  readonly startedAtMs: number;
}

/** A command whose end is not on disk yet. */
export interface OpenCommand extends CommandHeading {
  /** Bytes of output so far, written or not. */
  readonly offset: number;
  readonly end: CommandEnd | undefined;
}

interface Recorded extends OpenCommand {
  offset: number;
  end: CommandEnd | undefined;
}

type Entry =
  | { readonly kind: "start"; readonly command: Recorded }
  | { readonly kind: "end"; readonly command: Recorded; readonly end: CommandEnd }
  | { readonly kind: "data"; readonly command: Recorded; readonly piece: OutputPiece; readonly atMs: number };

interface ActiveSegment {
  readonly segment: Segment;
  readonly index: SegmentIndex;
  /** Closed while nothing is written for long. */
  file: LogFile | undefined;
  /** By command: what stands for it in this segment. */
  readonly numbers: Map<Recorded, number>;
  /** To be finished with the next write. */
  isDue: boolean;
}

/** Records that belong together in one write, and what the index is told once they are on disk. */
interface Batch {
  readonly buffers: Uint8Array[];
  readonly notes: (() => void)[];
  dataBytes: number;
  endsAt: number;
}

const WRITE_BYTES = 1024 * 1024;
const EAGER_BYTES = 256 * 1024;
// Adjacent pieces are one record up to this size: what a reader has to hold at a time.
const RECORD_DATA_BYTES = 256 * 1024;
const COMMANDS_PER_SEGMENT = 1000;
const LONGEST_PATH = 1024;
const IDLE_MS = 10_000;
// What a queued piece costs beside its bytes.
const ENTRY_BYTES = 128;

/**
 * Writes the log of one sandbox: gathers what its commands say for a moment, then appends it in one
 * write, one write at a time. Where the disk is slower than the commands they wait; where it fails, or
 * does not answer, output goes unrecorded until it works again, and commands notice nothing.
 */
export class LogWriter {
  readonly #options: LogWriterOptions;
  readonly #open = new Map<string, Recorded>();
  #queue: Entry[] = [];
  #queuedBytes = 0;
  #writingBytes = 0;
  /** Entries that were appended, and that were written or given up: how `flush` knows its own. */
  #appended = 0;
  #settled = 0;
  #active: ActiveSegment | undefined;
  #draining: Promise<void> | undefined;
  #cancelFlush: (() => void) | undefined;
  #cancelIdle: (() => void) | undefined;
  #cancelRetry: (() => void) | undefined;
  #failure: string | undefined;
  #isStalled = false;
  #isClosed = false;
  #waiters: (() => void)[] = [];

  constructor(options: LogWriterOptions) {
    this.#options = options;
  }

  get sandboxId(): string {
    return this.#options.log.sandboxId;
  }

  /** Commands that were begun and whose end is not on disk, oldest first. */
  get open(): ReadonlyMap<string, OpenCommand> {
    return this.#open;
  }

  /** Begins to record a command. */
  begin(heading: CommandHeading): Recorder {
    const command: Recorded = {
      ...heading,
      path: heading.path.slice(0, LONGEST_PATH),
      offset: 0,
      end: undefined,
    };
    this.#open.set(command.id, command);
    this.#push({ kind: "start", command }, 0);
    return {
      append: (piece) => {
        command.offset = piece.offset + piece.data.length;
        const entry: Entry = { kind: "data", command, piece, atMs: this.#options.clock.now() };
        this.#push(entry, piece.data.length);
      },
      room: () => (this.#isFull() ? this.#untilRoom() : undefined),
      end: (end) => {
        command.end = end;
        this.#push({ kind: "end", command, end }, 0);
      },
    };
  }

  /** Resolves when everything that was recorded until now is on disk, or given up. Never rejects. */
  async flush(): Promise<void> {
    const target = this.#appended;
    while (this.#settled < target && !this.#isStalled && !this.#isWaitingToRetry) {
      this.#drainNow();
      await this.#change();
    }
  }

  /** Finishes a segment that is still being written, so that it can be removed. */
  async finish(segment: Segment): Promise<void> {
    if (this.#active?.segment !== segment) return;
    this.#active.isDue = true;
    // Never beside a write: the footer has to come after it.
    if (this.#draining === undefined) await this.#seal().catch(() => {});
    while (this.#active?.segment === segment && !this.#isStalled) await this.#change();
  }

  /** Writes what is left and lets go of everything. Nothing is recorded afterwards. Never rejects. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelRetry?.();
    this.#cancelRetry = undefined;
    await this.flush();
    this.#cancelFlush?.();
    this.#cancelIdle?.();
    // The write that hangs finishes the segment when it comes back.
    if (!this.#isStalled) {
      await this.#draining;
      await this.#seal().catch(() => {});
    }
    this.#recover();
  }

  get #isWaitingToRetry(): boolean {
    return this.#cancelRetry !== undefined;
  }

  #push(entry: Entry, bytes: number): void {
    if (this.#isClosed || this.#isStalled || this.#isWaitingToRetry) {
      if (entry.kind === "data") this.#options.metrics.dropped(bytes);
      // Ends wait for the disk: they are few, and all that tells a finished command from a lost one.
      else if (entry.kind === "end" && !this.#isClosed) this.#enqueue(entry, bytes);
      return;
    }
    this.#enqueue(entry, bytes);
    if (this.#queuedBytes >= EAGER_BYTES) this.#drainNow();
    else this.#drainSoon();
  }

  #enqueue(entry: Entry, bytes: number): void {
    this.#queue.push(entry);
    this.#queuedBytes += bytes + ENTRY_BYTES;
    this.#appended += 1;
  }

  #isFull(): boolean {
    return this.#queuedBytes + this.#writingBytes > this.#options.settings.bufferBytes;
  }

  async #untilRoom(): Promise<void> {
    while (this.#isFull() && !this.#isStalled && !this.#isWaitingToRetry) await this.#change();
  }

  /** The next time that a write ended, or that there will be none for a while. */
  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#waiters.push(resolve);
    });
  }

  #wake(): void {
    const waiters = this.#waiters;
    this.#waiters = [];
    for (const wake of waiters) wake();
  }

  #drainSoon(): void {
    if (this.#draining !== undefined || this.#cancelFlush !== undefined) return;
    const { clock, settings } = this.#options;
    this.#cancelFlush = clock.after(settings.flushMs, () => this.#drainNow());
  }

  #drainNow(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = undefined;
    this.#draining ??= this.#drain().finally(() => {
      this.#draining = undefined;
      // What came between the last look at the queue and here has nobody else to write it.
      if (this.#queue.length > 0 && !this.#isWaitingToRetry) this.#drainSoon();
    });
  }

  async #drain(): Promise<void> {
    this.#cancelIdle?.();
    this.#cancelIdle = undefined;
    while (this.#queue.length > 0 && !this.#isWaitingToRetry) {
      const entries = this.#take();
      const stopWatch = this.#watchForStall();
      let unwritten = entries;
      try {
        await this.#write(entries);
        unwritten = [];
        if (this.#isSegmentFull()) await this.#seal();
        this.#recover();
      } catch (error) {
        await this.#fail(unwritten, messageOf(error));
      } finally {
        stopWatch();
        this.#isStalled = false;
        this.#writingBytes = 0;
        this.#settled += entries.length;
        this.#wake();
      }
    }
    if (this.#isClosed) await this.#seal().catch(() => {});
    else if (this.#active?.file !== undefined) {
      this.#cancelIdle = this.#options.clock.after(IDLE_MS, () => void this.#closeIdleFile());
    }
  }

  #take(): readonly Entry[] {
    let bytes = 0;
    let count = 0;
    // A segment is finished between two writes, so a write is no larger than one.
    const mostBytes = Math.min(WRITE_BYTES, this.#options.settings.segmentBytes);
    while (count < this.#queue.length && bytes < mostBytes) {
      bytes += entryBytes(this.#queue[count]);
      count += 1;
    }
    const entries = this.#queue.splice(0, count);
    this.#queuedBytes -= bytes;
    this.#writingBytes = bytes;
    return entries;
  }

  async #write(entries: readonly Entry[]): Promise<void> {
    const { log, files, clock, metrics } = this.#options;
    const active = (this.#active ??= this.#beginSegment());
    const { segment, index } = active;
    const isNew = segment.bytes === 0;
    active.file ??= isNew ? await files.create(segment.path) : await files.reopen(segment.path);
    if (isNew) log.add(segment);
    const batch = encodeBatch(entries, active);
    if (isNew) batch.buffers.unshift(SEGMENT_MAGIC);
    await active.file.append(batch.buffers);
    for (const note of batch.notes) note();
    segment.bytes = index.endsAt;
    segment.writtenAtMs = clock.now();
    metrics.written(batch.dataBytes);
    for (const entry of entries) if (entry.kind === "end") this.#open.delete(entry.command.id);
  }

  #isSegmentFull(): boolean {
    const active = this.#active;
    if (active === undefined) return false;
    const { segment, index, isDue } = active;
    return (
      isDue ||
      segment.bytes >= this.#options.settings.segmentBytes ||
      // A segment of many short commands ends early, so that its index stays quick to read.
      index.size >= COMMANDS_PER_SEGMENT
    );
  }

  #beginSegment(): ActiveSegment {
    const { log, clock } = this.#options;
    const index = new SegmentIndex(SEGMENT_MAGIC.length);
    const segment = log.next(clock.now());
    segment.index = index;
    return { segment, index, file: undefined, numbers: new Map(), isDue: false };
  }

  /** Finishes the active segment: its index goes into the file, and nothing more after it. */
  async #seal(): Promise<void> {
    const active = this.#active;
    if (active === undefined) return;
    this.#active = undefined;
    const { segment, index } = active;
    const { files, onRotate } = this.#options;
    try {
      if (segment.bytes > 0) {
        active.file ??= await files.reopen(segment.path);
        const footer = encodeFooter(index);
        await active.file.append([footer]);
        segment.bytes += footer.length;
      }
    } finally {
      segment.index = undefined;
      await active.file?.close();
    }
    onRotate(segment.bytes);
  }

  async #closeIdleFile(): Promise<void> {
    if (this.#draining !== undefined) return;
    const file = this.#active?.file;
    if (this.#active !== undefined) this.#active.file = undefined;
    await file?.close().catch(() => {});
  }

  /** What could not be written is given up, except for ends; the file it was meant for is left as it is. */
  async #fail(entries: readonly Entry[], reason: string): Promise<void> {
    const { log, files, clock, settings, metrics } = this.#options;
    const active = this.#active;
    this.#active = undefined;
    if (active !== undefined) active.segment.index = undefined;
    for (const entry of entries) if (entry.kind === "data") metrics.dropped(entry.piece.data.length);
    this.#dropQueue();
    const ends = entries.filter(({ kind, command }) => kind === "end" && this.#open.has(command.id));
    this.#report(reason);
    if (this.#isClosed) {
      // That was the last attempt.
      this.#settled += this.#queue.length;
      this.#queue = [];
    } else {
      this.#queue.unshift(...ends);
      this.#queuedBytes += ends.length * ENTRY_BYTES;
      this.#appended += ends.length;
      this.#cancelRetry = clock.after(settings.retryMs, () => {
        this.#cancelRetry = undefined;
        if (this.#queue.length > 0) this.#drainNow();
        else this.#recover();
      });
    }
    await active?.file?.close().catch(() => {});
    if (active?.segment.bytes === 0) {
      log.delete(active.segment);
      await files.remove(active.segment.path).catch(() => {});
    }
  }

  /** A disk that does not answer: nobody waits for it any longer, and nothing more is gathered for it. */
  #watchForStall(): () => void {
    const { clock, settings } = this.#options;
    return clock.after(settings.stallMs, () => {
      this.#isStalled = true;
      this.#dropQueue();
      this.#report(`no answer from the disk within ${settings.stallMs} ms`);
      this.#wake();
    });
  }

  #dropQueue(): void {
    const dropped = this.#queue.filter(({ kind }) => kind !== "end");
    for (const entry of dropped) {
      if (entry.kind === "data") this.#options.metrics.dropped(entry.piece.data.length);
      this.#queuedBytes -= entryBytes(entry);
    }
    this.#settled += dropped.length;
    this.#queue = this.#queue.filter(({ kind }) => kind === "end");
  }

  #report(reason: string): void {
    if (this.#failure === undefined) this.#options.metrics.failed();
    this.#failure = reason;
    this.#options.onFailure(reason);
  }

  #recover(): void {
    if (this.#failure === undefined) return;
    this.#failure = undefined;
    this.#options.onFailure(undefined);
  }
}

/** Takes down what one command writes. */
export interface Recorder {
  append(piece: OutputPiece): void;
  /** Undefined when more can be taken at once; otherwise resolves when it can. */
  room(): Promise<void> | undefined;
  end(end: CommandEnd): void;
}

function entryBytes(entry: Entry | undefined): number {
  return ENTRY_BYTES + (entry?.kind === "data" ? entry.piece.data.length : 0);
}

function encodeBatch(entries: readonly Entry[], active: ActiveSegment): Batch {
  const batch: Batch = { buffers: [], notes: [], dataBytes: 0, endsAt: active.index.endsAt };
  for (let at = 0; at < entries.length;) {
    const entry = entries[at];
    if (entry === undefined) break;
    const number = numberOf(entry, active, batch);
    if (entry.kind === "data") {
      const run = adjacentPieces(entries, at);
      encodeData({ number, stream: entry.piece.stream, atMs: entry.atMs, run }, active.index, batch);
      at += run.length;
      continue;
    }
    if (entry.kind === "end") {
      const record = { kind: "end", number, offset: entry.command.offset, end: entry.end } as const;
      place(batch, [encodeRecord(record)], (position, endsAt) => active.index.add(record, position, endsAt));
    }
    at += 1;
  }
  return batch;
}

/** Introduces the command to the segment with the first that is written of it there. */
function numberOf(entry: Entry, active: ActiveSegment, batch: Batch): number {
  const { command } = entry;
  const known = active.numbers.get(command);
  if (known !== undefined) return known;
  const number = active.numbers.size;
  active.numbers.set(command, number);
  const { id, pid, path, tag, startedAtMs } = command;
  const offset = entry.kind === "data" ? entry.piece.offset : entry.kind === "end" ? command.offset : 0;
  const record = { kind: "start", number, id, pid, path, tag, startedAtMs, offset } as const;
  place(batch, [encodeRecord(record)], (position, endsAt) => active.index.add(record, position, endsAt));
  return number;
}

/** Pieces that can be one record: of one command and one stream, without a gap. At least the first. */
function adjacentPieces(entries: readonly Entry[], from: number): readonly OutputPiece[] {
  const run: OutputPiece[] = [];
  let bytes = 0;
  for (let at = from; at < entries.length; at += 1) {
    const entry = entries[at];
    const first = entries[from];
    if (entry?.kind !== "data" || first?.kind !== "data" || entry.command !== first.command) break;
    const { stream, offset, data } = entry.piece;
    const isNext = stream === first.piece.stream && offset === first.piece.offset + bytes;
    if (run.length > 0 && (!isNext || bytes + data.length > RECORD_DATA_BYTES)) break;
    run.push(entry.piece);
    bytes += data.length;
  }
  return run;
}

interface DataRun {
  readonly number: number;
  readonly stream: Output["stream"];
  readonly atMs: number;
  readonly run: readonly OutputPiece[];
}

function encodeData({ number, stream, atMs, run }: DataRun, index: SegmentIndex, batch: Batch): void {
  // Only a single piece can be larger than a record.
  const whole = run.length === 1 ? split(run[0]) : [run];
  for (const pieces of whole) {
    const data = pieces.map((piece) => piece.data);
    const offset = pieces[0]?.offset ?? 0;
    const length = data.reduce((sum, { length }) => sum + length, 0);
    const record: IndexedData = { kind: "data", number, offset, length };
    const buffers = [encodeDataHead({ number, stream, offset, atMs }, data), ...data];
    batch.dataBytes += length;
    place(batch, buffers, (position, endsAt) => index.add(record, position, endsAt));
  }
}

function split(piece: OutputPiece | undefined): readonly (readonly OutputPiece[])[] {
  if (piece === undefined) return [];
  const parts: OutputPiece[][] = [];
  for (let at = 0; at < piece.data.length; at += RECORD_DATA_BYTES) {
    const data = piece.data.subarray(at, at + RECORD_DATA_BYTES);
    parts.push([{ stream: piece.stream, offset: piece.offset + at, data }]);
  }
  return parts;
}

function place(
  batch: Batch,
  buffers: readonly Uint8Array[],
  note: (position: number, endsAt: number) => void,
): void {
  const position = batch.endsAt;
  for (const buffer of buffers) batch.endsAt += buffer.length;
  batch.buffers.push(...buffers);
  const { endsAt } = batch;
  batch.notes.push(() => note(position, endsAt));
}
