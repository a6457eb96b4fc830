import { type Clock, messageOf } from "@coppice/core";
import type { OutputKeeping } from "@coppice/core/backend";
import type { OutputLogConfig } from "../commands-config.js";
import type { CommandEnd, OutputPiece } from "../contract/commands.js";
import { LogBatch, MAX_BATCH_BYTES, type SpareBuffers } from "./log-batch.js";
import type { LogFile, LogFiles } from "./log-files.js";
import type { LogMetrics } from "./log-metrics.js";
import type { SandboxLog, Segment } from "./sandbox-log.js";
import { SEGMENT_MAGIC } from "./segment-codec.js";
import { encodeFooter } from "./segment-file.js";
import { SegmentIndex } from "./segment-index.js";

export interface LogWriterOptions {
  readonly log: SandboxLog;
  readonly files: LogFiles;
  readonly config: OutputLogConfig;
  /** Size at which a segment is finished and the next one begun. */
  readonly segmentBytes: number;
  readonly clock: Clock;
  readonly metrics: LogMetrics;
  /** Shared with the writers of other sandboxes. */
  readonly spares: SpareBuffers;
  /** Called with the reason why nothing is written; with undefined after a write, or when nothing is left to write. */
  readonly onFailure: (reason: string | undefined) => void;
  /** Returns a segment that was removed from the log, whose file the next segment reuses. */
  readonly takeOldest: () => Segment | undefined;
  /** Called after a segment was finished, with its size. */
  readonly onRotate: (bytes: number) => void;
}

/** Facts about a command that the log keeps, besides its output. */
export interface CommandHeading {
  readonly id: string;
  readonly pid: number;
  readonly path: string;
  readonly tag: string | undefined;
  readonly startedAtMs: number;
  /** Told of what is on disk, and of what is given up. */
  readonly keeping?: Pick<OutputKeeping, "confirm" | "forget"> | undefined;
}

export interface Recorder {
  append(piece: OutputPiece): void;
  /** Undefined when more can be accepted at once; otherwise resolves when it can. */
  room(): Promise<void> | undefined;
  end(end: CommandEnd): void;
}

/** A command whose end is not on disk yet. */
interface Recorded extends CommandHeading {
  /** Bytes of output so far, written or not. */
  offset: number;
  /** Bytes of output that are written or given up. */
  settledBytes: number;
  end: CommandEnd | undefined;
}

/** A segment that is being written, or will be next. */
interface ActiveSegment {
  readonly segment: Segment;
  readonly index: SegmentIndex;
  /** Closed during long pauses between writes. */
  file: LogFile | undefined;
  /** Bytes of the previous segment in its reused file. */
  oldBytes: number;
  /** Numbers of the commands in this segment. */
  readonly numbers: Map<Recorded, number>;
  /** Bytes of its batches, written or not. */
  plannedBytes: number;
}

interface Pending {
  readonly batch: LogBatch;
  readonly target: ActiveSegment;
  readonly ended: Recorded[];
  /** Offset after the last output of each command in it. */
  readonly reached: Map<Recorded, number>;
  /** Sequence number of its last record. */
  sequence: number;
}

const COMMANDS_PER_SEGMENT = 1000;
const MAX_PATH = 1024;
const MAX_TAG = 4096;
const IDLE_MS = 10_000;
/** Unwritten output of a command after which no more is gathered: a quarter of what its process may be ahead. */
const UNSETTLED_BYTES = 512 * 1024;

/**
 * Writes the log of one sandbox: gathers its commands' output for a moment, then appends it in one write, one write at
 * a time. A slow disk slows the commands; while the disk fails or hangs, output is lost and commands go on undisturbed.
 */
export class LogWriter {
  readonly #options: LogWriterOptions;
  /** While one is written, another can be filled. */
  readonly #batchBytes: number;
  readonly #open = new Map<string, Recorded>();
  /** First in, first written; the last one is being filled. */
  #pending: Pending[] = [];
  /** The batch that is being written, which is in none of these lists. */
  #inFlight: Pending | undefined;
  /** Ended commands that wait for a working disk: few, and needed to tell them from lost ones. */
  #unwrittenEnds: Recorded[] = [];
  #recorded = 0;
  #settled = 0;
  /** Sequence numbers of the last record passed to the disk, and of the last one that must not wait for others. */
  #taken = 0;
  #due = 0;
  #active: ActiveSegment | undefined;
  /** Segments without further records than the pending ones. */
  #ending: ActiveSegment[] = [];
  #draining: Promise<void> | undefined;
  #cancelFlush: (() => void) | undefined;
  #cancelIdle: (() => void) | undefined;
  #cancelRetry: (() => void) | undefined;
  #failure: string | undefined;
  #isStalled = false;
  #isClosed = false;
  /** Resolves when a write ended, or when the log is suspended. */
  #change = Promise.withResolvers<void>();

  constructor(options: LogWriterOptions) {
    this.#options = options;
    this.#batchBytes = Math.min(MAX_BATCH_BYTES, options.config.buffer / 2);
  }

  get sandboxId(): string {
    return this.#options.log.sandboxId;
  }

  /** Commands whose end is not on disk, oldest first. */
  get open(): ReadonlyMap<string, Readonly<Recorded>> {
    return this.#open;
  }

  begin(heading: CommandHeading): Recorder {
    const path = heading.path.slice(0, MAX_PATH);
    const tag = heading.tag?.slice(0, MAX_TAG);
    const command: Recorded = { ...heading, path, tag, offset: 0, settledBytes: 0, end: undefined };
    this.#open.set(command.id, command);
    this.#add((pending) => void numberOf(command, pending));
    return {
      append: (piece) => {
        const end = piece.offset + piece.data.length;
        const added = this.#add(({ batch, target, reached }) => {
          const number = numberOf(command, { batch, target });
          batch.addData(number, piece, this.#options.clock.now());
          reached.set(command, end);
        });
        command.offset = end;
        if (!added) {
          this.#options.metrics.dropped.inc(piece.data.length);
          confirm(command, end);
        }
        // The process waits when too much of its output is not on disk.
        if (end - command.settledBytes >= UNSETTLED_BYTES && command.keeping !== undefined) this.#drainNow();
      },
      room: () => (this.#isFull() ? this.#drainWhile(() => this.#isFull()) : undefined),
      end: (end) => {
        command.end = end;
        if (!this.#add((pending) => addEnd(command, pending))) this.#unwrittenEnds.push(command);
      },
    };
  }

  /** Resolves when everything recorded until now is on disk, or given up. Never rejects. */
  async flush(): Promise<void> {
    const target = this.#recorded;
    await this.#drainWhile(() => this.#settled < target);
  }

  /** Finishes a segment that is still being written, so that it can be removed. Never rejects. */
  async finish(segment: Segment): Promise<void> {
    if (this.#active?.segment !== segment) return;
    await this.flush();
    const active = this.#active;
    if (active?.segment !== segment) return;
    this.#endActive();
    await this.#drainWhile(() => segment.index !== undefined);
  }

  /** Writes the rest and releases everything. Nothing is recorded afterwards. Never rejects. */
  async close(): Promise<void> {
    this.#cancelRetry?.();
    this.#cancelRetry = undefined;
    this.#addUnwrittenEnds();
    this.#isClosed = true;
    await this.flush();
    this.#cancelFlush?.();
    this.#cancelIdle?.();
    // A hanging write finishes the segment when it returns.
    if (!this.#isStalled) {
      await this.#draining;
      this.#endActive();
      await this.#sealEnding().catch(() => {});
    }
    this.#recover();
  }

  /** False while the log is suspended. */
  get #isWriting(): boolean {
    return !this.#isStalled && this.#cancelRetry === undefined;
  }

  /** Adds to the batch that is being filled. False where nothing can be recorded now. */
  #add(fill: (pending: Pending) => void): boolean {
    if (this.#isClosed || !this.#isWriting) return false;
    const pending = this.#filling();
    const before = pending.batch.bytes;
    fill(pending);
    this.#recorded += 1;
    pending.sequence = this.#recorded;
    pending.target.plannedBytes += pending.batch.bytes - before;
    if (this.#isNextDue) this.#startDrain();
    else this.#drainSoon();
    return true;
  }

  #filling(): Pending {
    const last = this.#pending.at(-1);
    const active = this.#active;
    const { segmentBytes, spares } = this.#options;
    const isSegmentFull =
      active !== undefined &&
      (active.plannedBytes >= segmentBytes ||
        // A segment of many short commands ends early, so that its index stays quick to read.
        active.numbers.size >= COMMANDS_PER_SEGMENT);
    if (isSegmentFull) this.#endActive();
    const target = this.#active ?? this.#beginSegment();
    if (last !== undefined && last.target === target && last.batch.bytes < this.#batchBytes) return last;
    const batch = new LogBatch(target.segment.number, spares);
    const pending: Pending = { batch, target, ended: [], reached: new Map(), sequence: 0 };
    this.#pending.push(pending);
    return pending;
  }

  #beginSegment(): ActiveSegment {
    const { log, clock } = this.#options;
    const index = new SegmentIndex(SEGMENT_MAGIC.length);
    const segment = log.next(clock.now());
    segment.index = index;
    this.#active = { segment, index, file: undefined, oldBytes: 0, numbers: new Map(), plannedBytes: 0 };
    return this.#active;
  }

  /** Further records go to another segment. */
  #endActive(): void {
    if (this.#active !== undefined) this.#ending.push(this.#active);
    this.#active = undefined;
  }

  #isFull(): boolean {
    let bytes = this.#inFlight?.batch.bytes ?? 0;
    for (const { batch } of this.#pending) bytes += batch.bytes;
    return bytes > this.#options.config.buffer;
  }

  /** Writes until the condition no longer holds, or the log is suspended. */
  async #drainWhile(condition: () => boolean): Promise<void> {
    while (condition() && this.#isWriting) {
      this.#drainNow();
      await this.#change.promise;
    }
  }

  #wake(): void {
    this.#change.resolve();
    this.#change = Promise.withResolvers();
  }

  #drainSoon(): void {
    if (this.#draining !== undefined || this.#cancelFlush !== undefined) return;
    const { clock, config } = this.#options;
    this.#cancelFlush = clock.after(config.flushInterval, () => this.#drainNow());
  }

  /** Writes everything recorded until now. */
  #drainNow(): void {
    this.#due = this.#recorded;
    this.#startDrain();
  }

  /** True when the next batch need not wait for more. Each write costs a thread switch, so a flood is written in few. */
  get #isNextDue(): boolean {
    const [next, another] = this.#pending;
    if (next === undefined) return false;
    return another !== undefined || next.batch.bytes >= this.#batchBytes || this.#taken < this.#due;
  }

  #startDrain(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = undefined;
    this.#draining ??= this.#drain().finally(() => {
      this.#draining = undefined;
      // Records that came since the last check would not be written otherwise.
      if (this.#pending.length > 0 || this.#ending.length > 0) this.#drainSoon();
    });
  }

  async #drain(): Promise<void> {
    this.#cancelIdle?.();
    this.#cancelIdle = undefined;
    while (this.#isNextDue || this.#ending.some((ending) => this.#isDone(ending))) {
      const next = this.#isNextDue ? this.#pending.shift() : undefined;
      if (next !== undefined) this.#taken = next.sequence;
      this.#inFlight = next;
      const stopWatch = this.#watchForStall();
      try {
        if (next !== undefined) await this.#write(next);
        this.#inFlight = undefined;
        await this.#sealEnding();
        this.#recover();
      } catch (error) {
        await this.#fail(this.#inFlight, messageOf(error));
      } finally {
        stopWatch();
        this.#isStalled = false;
        this.#inFlight = undefined;
        if (next !== undefined) this.#settle(next);
        this.#wake();
      }
    }
    if (!this.#isClosed) this.#cancelIdle = this.#options.clock.after(IDLE_MS, () => void this.#rest());
  }

  async #write({ batch, target, ended }: Pending): Promise<void> {
    const { log, files, clock, metrics } = this.#options;
    const { segment, index } = target;
    const records = batch.finish();
    if (segment.bytes === 0) {
      target.file = await this.#create(target);
      log.add(segment);
      await target.file.append([SEGMENT_MAGIC, records]);
    } else {
      target.file ??= await files.reopen(segment.path, segment.bytes);
      await target.file.append([records]);
    }
    batch.enter(index);
    segment.bytes = index.endsAt;
    segment.writtenAtMs = clock.now();
    metrics.written.inc(batch.dataBytes);
    for (const { id, keeping } of ended) {
      this.#open.delete(id);
      keeping?.forget();
    }
  }

  /** Reuses the file of an old segment, if any: filling pages costs less than allocating and freeing them. */
  async #create(target: ActiveSegment): Promise<LogFile> {
    const { files, takeOldest } = this.#options;
    const { path } = target.segment;
    const old = takeOldest();
    if (old === undefined) return files.create(path);
    target.oldBytes = old.bytes;
    return files.replace(old.path, path);
  }

  async #sealEnding(): Promise<void> {
    for (;;) {
      const done = this.#ending.find((ending) => this.#isDone(ending));
      if (done === undefined) return;
      // Removed from the list first: if it fails, the clean-up handles the others.
      this.#ending.splice(this.#ending.indexOf(done), 1);
      await this.#seal(done);
    }
  }

  #isDone(ending: ActiveSegment): boolean {
    return this.#pending.every(({ target }) => target !== ending);
  }

  /** Finishes a segment by appending its index. */
  async #seal(target: ActiveSegment): Promise<void> {
    const { segment, index } = target;
    const { files, onRotate } = this.#options;
    try {
      if (segment.bytes > 0) {
        target.file ??= await files.reopen(segment.path, segment.bytes);
        const footer = encodeFooter(index, segment.number);
        await target.file.append([footer]);
        segment.bytes += footer.length;
        // The footer must be at the end of the file.
        if (target.oldBytes > segment.bytes) await target.file.cutOff();
      }
    } finally {
      segment.index = undefined;
      await target.file?.close();
    }
    onRotate(segment.bytes);
  }

  /** Closes an idle log's file and releases its memory. */
  async #rest(): Promise<void> {
    if (this.#draining !== undefined) return;
    const file = this.#active?.file;
    if (this.#active !== undefined) this.#active.file = undefined;
    await file?.close().catch(() => {});
  }

  /** Drops a failed batch, except for ends, and leaves its file as it is. */
  async #fail(failed: Pending | undefined, reason: string): Promise<void> {
    const { clock, config } = this.#options;
    if (failed !== undefined) this.#giveUp(failed);
    this.#giveUpPending();
    const abandoned = this.#ending;
    this.#ending = [];
    this.#report(reason);
    if (this.#isClosed) this.#unwrittenEnds.length = 0;
    else {
      this.#cancelRetry = clock.after(config.retryInterval, () => {
        this.#cancelRetry = undefined;
        if (this.#unwrittenEnds.length > 0) this.#addUnwrittenEnds();
        else this.#recover();
      });
    }
    for (const each of abandoned) await this.#abandon(each);
  }

  /** Leaves a segment as it is: its complete records can be read. */
  async #abandon({ segment, file }: ActiveSegment): Promise<void> {
    const { log, files } = this.#options;
    segment.index = undefined;
    await file?.close().catch(() => {});
    if (segment.bytes > 0) return;
    log.delete(segment);
    await files.remove(segment.path).catch(() => {});
  }

  /** Detects a hanging disk: the writer stops waiting for it and gathers nothing more. */
  #watchForStall(): () => void {
    const { clock, config } = this.#options;
    return clock.after(config.stallTimeout, () => {
      this.#isStalled = true;
      for (const [command, offset] of this.#inFlight?.reached ?? []) confirm(command, offset);
      this.#giveUpPending();
      this.#report(`no answer from the disk within ${config.stallTimeout} ms`);
      this.#wake();
    });
  }

  #giveUpPending(): void {
    for (const pending of this.#pending) {
      this.#giveUp(pending);
      this.#settle(pending);
    }
    this.#pending = [];
    // The dropped records may have introduced its commands.
    this.#endActive();
  }

  #giveUp({ batch, ended }: Pending): void {
    this.#options.metrics.dropped.inc(batch.dataBytes);
    this.#unwrittenEnds.push(...ended);
  }

  #settle({ batch, sequence, reached }: Pending): void {
    this.#settled = Math.max(this.#settled, sequence);
    for (const [command, offset] of reached) confirm(command, offset);
    batch.release();
  }

  #addUnwrittenEnds(): void {
    const ends = this.#unwrittenEnds;
    this.#unwrittenEnds = [];
    for (const command of ends) {
      if (!this.#add((pending) => addEnd(command, pending))) this.#unwrittenEnds.push(command);
    }
  }

  #report(reason: string): void {
    if (this.#failure === undefined) this.#options.metrics.failures.inc();
    this.#failure = reason;
    this.#options.onFailure(reason);
  }

  #recover(): void {
    if (this.#failure === undefined) return;
    this.#failure = undefined;
    this.#options.onFailure(undefined);
    this.#addUnwrittenEnds();
  }
}

/** Output up to an offset is written, or given up: its process may go on. */
function confirm(command: Recorded, offset: number): void {
  command.settledBytes = Math.max(command.settledBytes, offset);
  command.keeping?.confirm(offset);
}

function addEnd(command: Recorded, { batch, target, ended }: Pending): void {
  const { offset, end } = command;
  if (end === undefined) return;
  const number = numberOf(command, { batch, target });
  batch.addRecord({ kind: "end", number, offset, end });
  ended.push(command);
}

/** The command's number in the segment, which its first record there introduces. */
function numberOf(command: Recorded, { batch, target }: Pick<Pending, "batch" | "target">): number {
  const known = target.numbers.get(command);
  if (known !== undefined) return known;
  const number = target.numbers.size;
  target.numbers.set(command, number);
  const { id, pid, path, tag, startedAtMs, offset } = command;
  batch.addRecord({ kind: "start", number, id, pid, path, tag, startedAtMs, offset });
  return number;
}
