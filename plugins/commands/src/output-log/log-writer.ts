import { type Clock, messageOf } from "@coppice/core";
import type { CommandEnd, OutputPiece } from "../contract/commands.js";
import { LARGEST_BATCH_BYTES, LogBatch } from "./log-batch.js";
import type { LogFile, LogFiles } from "./log-files.js";
import type { LogMetrics } from "./log-metrics.js";
import type { SandboxLog, Segment } from "./sandbox-log.js";
import { SEGMENT_MAGIC } from "./segment-codec.js";
import { encodeFooter } from "./segment-file.js";
import type { SpareBuffers } from "./spare-buffers.js";
import { SegmentIndex } from "./segment-index.js";

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
  /** Shared with the writers of other sandboxes. */
  readonly spares: SpareBuffers;
  /** Told why nothing is written; undefined takes it back, after a write, or where nothing is left to write. */
  readonly onFailure: (reason: string | undefined) => void;
  /** Asked before a segment is begun: one that is no part of the log any more, to be written over. */
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
}

/** A command whose end is not on disk yet. */
export interface OpenCommand extends CommandHeading {
  /** Bytes of output so far, written or not. */
  readonly offset: number;
  readonly end: CommandEnd | undefined;
}

/** Takes down what one command writes. */
export interface Recorder {
  append(piece: OutputPiece): void;
  /** Undefined when more can be taken at once; otherwise resolves when it can. */
  room(): Promise<void> | undefined;
  end(end: CommandEnd): void;
}

interface Recorded extends OpenCommand {
  offset: number;
  end: CommandEnd | undefined;
}

/** A segment that is being written, or will be next. */
interface ActiveSegment {
  readonly segment: Segment;
  readonly index: SegmentIndex;
  /** Closed while nothing is written for long. */
  file: LogFile | undefined;
  /** What its file had in it when it was begun: it was another segment's. */
  oldBytes: number;
  /** By command: what stands for it in this segment. */
  readonly numbers: Map<Recorded, number>;
  /** What batches have for it, written or not. */
  plannedBytes: number;
}

/** A batch on its way to the disk. */
interface Pending {
  readonly batch: LogBatch;
  readonly target: ActiveSegment;
  /** Commands whose end is in it. */
  readonly ended: Recorded[];
  /** The last of what was recorded that is in it, counted from the beginning. */
  sequence: number;
}

const COMMANDS_PER_SEGMENT = 1000;
const LONGEST_PATH = 1024;
const LONGEST_TAG = 4096;
const IDLE_MS = 10_000;

/**
 * Writes the log of one sandbox: gathers what its commands say for a moment, then appends it in one
 * write, one write at a time. Where the disk is slower than the commands they wait; where it fails, or
 * does not answer, output goes unrecorded until it works again, and commands notice nothing.
 */
export class LogWriter {
  readonly #options: LogWriterOptions;
  /** While one is written, another can be filled. */
  readonly #batchBytes: number;
  readonly #open = new Map<string, Recorded>();
  /** First in, first written; the last one is being filled. */
  #pending: Pending[] = [];
  /** The one that is being written, which is in none of these lists. */
  #inFlight: Pending | undefined;
  /** Ended commands that wait for a disk that works: few, and all that tells them from lost ones. */
  #unwrittenEnds: Recorded[] = [];
  #recorded = 0;
  #settled = 0;
  /** Offset that the writer was given, and the offset that it has to reach even when more would fit. */
  #taken = 0;
  #due = 0;
  #active: ActiveSegment | undefined;
  /** Segments that get nothing more than what is pending for them. */
  #ending: ActiveSegment[] = [];
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
    this.#batchBytes = Math.min(LARGEST_BATCH_BYTES, options.settings.bufferBytes / 2);
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
    const path = heading.path.slice(0, LONGEST_PATH);
    const tag = heading.tag?.slice(0, LONGEST_TAG);
    const command: Recorded = { ...heading, path, tag, offset: 0, end: undefined };
    this.#open.set(command.id, command);
    this.#add((pending) => void numberOf(command, pending));
    return {
      append: (piece) => {
        const added = this.#add(({ batch, target }) => {
          const number = numberOf(command, { batch, target });
          batch.addData(number, piece, this.#options.clock.now());
        });
        if (!added) this.#options.metrics.dropped(piece.data.length);
        command.offset = piece.offset + piece.data.length;
      },
      room: () => (this.#isFull() ? this.#untilRoom() : undefined),
      end: (end) => {
        command.end = end;
        if (!this.#add((pending) => addEnd(command, pending))) this.#unwrittenEnds.push(command);
      },
    };
  }

  /** Resolves when everything that was recorded until now is on disk, or given up. Never rejects. */
  async flush(): Promise<void> {
    const target = this.#recorded;
    while (this.#settled < target && this.#isWriting) {
      this.#drainNow();
      await this.#change();
    }
  }

  /** Finishes a segment that is still being written, so that it can be removed. Never rejects. */
  async finish(segment: Segment): Promise<void> {
    if (this.#active?.segment !== segment) return;
    await this.flush();
    const active = this.#active;
    if (active?.segment !== segment) return;
    this.#endActive();
    while (segment.index !== undefined && this.#isWriting) {
      this.#drainNow();
      await this.#change();
    }
  }

  /** Writes what is left and lets go of everything. Nothing is recorded afterwards. Never rejects. */
  async close(): Promise<void> {
    this.#cancelRetry?.();
    this.#cancelRetry = undefined;
    this.#addUnwrittenEnds();
    this.#isClosed = true;
    await this.flush();
    this.#cancelFlush?.();
    this.#cancelIdle?.();
    // A write that hangs finishes the segment when it comes back.
    if (!this.#isStalled) {
      await this.#draining;
      this.#endActive();
      await this.#sealEnding().catch(() => {});
    }
    this.#recover();
  }

  /** False while the disk is given up. */
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
    const { settings, spares } = this.#options;
    const isSegmentFull =
      active !== undefined &&
      (active.plannedBytes >= settings.segmentBytes ||
        // A segment of many short commands ends early, so that its index stays quick to read.
        active.numbers.size >= COMMANDS_PER_SEGMENT);
    if (isSegmentFull) this.#endActive();
    const target = this.#active ?? this.#beginSegment();
    if (last !== undefined && last.target === target && last.batch.bytes < this.#batchBytes) return last;
    const pending = {
      batch: new LogBatch({ seed: target.segment.number, spares }),
      target,
      ended: [],
      sequence: 0,
    };
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

  /** What is recorded from here on is for another segment. */
  #endActive(): void {
    if (this.#active !== undefined) this.#ending.push(this.#active);
    this.#active = undefined;
  }

  #isFull(): boolean {
    const { bufferBytes } = this.#options.settings;
    let bytes = this.#inFlight?.batch.bytes ?? 0;
    for (const { batch } of this.#pending) bytes += batch.bytes;
    return bytes > bufferBytes;
  }

  async #untilRoom(): Promise<void> {
    while (this.#isFull() && this.#isWriting) {
      this.#drainNow();
      await this.#change();
    }
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

  /** Writes all that was recorded until now. */
  #drainNow(): void {
    this.#due = this.#recorded;
    this.#startDrain();
  }

  /** Whether the next batch need not wait for more: each write costs a change of threads, so a flood is written in few. */
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
      // What came between the last look and here has nobody else to write it.
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
    metrics.written(batch.dataBytes);
    for (const { id } of ended) this.#open.delete(id);
  }

  /** Where there is an old segment to spare, its file: making and freeing pages costs more than filling them. */
  async #create(target: ActiveSegment): Promise<LogFile> {
    const { files, takeOldest } = this.#options;
    const { path } = target.segment;
    const old = takeOldest();
    if (old === undefined) return files.create(path);
    target.oldBytes = old.bytes;
    return files.replace(old.path, path);
  }

  /** Finishes the segments that nothing is pending for any more. */
  async #sealEnding(): Promise<void> {
    for (;;) {
      const done = this.#ending.find((ending) => this.#isDone(ending));
      if (done === undefined) return;
      // First out of the list: where it fails, the others are left to whoever cleans up.
      this.#ending.splice(this.#ending.indexOf(done), 1);
      await this.#seal(done);
    }
  }

  #isDone(ending: ActiveSegment): boolean {
    return this.#pending.every(({ target }) => target !== ending);
  }

  /** Finishes a segment: its index goes into the file, and nothing more after it. */
  async #seal(target: ActiveSegment): Promise<void> {
    const { segment, index } = target;
    const { files, onRotate } = this.#options;
    try {
      if (segment.bytes > 0) {
        target.file ??= await files.reopen(segment.path, segment.bytes);
        const footer = encodeFooter(index, segment.number);
        await target.file.append([footer]);
        segment.bytes += footer.length;
        // The footer is looked for at the end of the file.
        if (target.oldBytes > segment.bytes) await target.file.cutOff();
      }
    } finally {
      segment.index = undefined;
      await target.file?.close();
    }
    onRotate(segment.bytes);
  }

  /** Nothing was written for a while: a log that waits costs no open file and no memory. */
  async #rest(): Promise<void> {
    if (this.#draining !== undefined) return;
    const file = this.#active?.file;
    if (this.#active !== undefined) this.#active.file = undefined;
    await file?.close().catch(() => {});
  }

  /** What could not be written is given up, except for ends; the file it was meant for is left as it is. */
  async #fail(failed: Pending | undefined, reason: string): Promise<void> {
    const { clock, settings } = this.#options;
    if (failed !== undefined) this.#giveUp(failed);
    this.#giveUpPending();
    const abandoned = this.#ending;
    this.#ending = [];
    this.#report(reason);
    if (this.#isClosed) this.#unwrittenEnds.length = 0;
    else {
      this.#cancelRetry = clock.after(settings.retryMs, () => {
        this.#cancelRetry = undefined;
        if (this.#unwrittenEnds.length > 0) this.#addUnwrittenEnds();
        else this.#recover();
      });
    }
    for (const each of abandoned) await this.#abandon(each);
  }

  /** Leaves a segment as it is: what is whole in it can be read. */
  async #abandon({ segment, file }: ActiveSegment): Promise<void> {
    const { log, files } = this.#options;
    segment.index = undefined;
    await file?.close().catch(() => {});
    if (segment.bytes > 0) return;
    log.delete(segment);
    await files.remove(segment.path).catch(() => {});
  }

  /** A disk that does not answer: nobody waits for it any longer, and nothing more is gathered for it. */
  #watchForStall(): () => void {
    const { clock, settings } = this.#options;
    return clock.after(settings.stallMs, () => {
      this.#isStalled = true;
      this.#giveUpPending();
      this.#report(`no answer from the disk within ${settings.stallMs} ms`);
      this.#wake();
    });
  }

  #giveUpPending(): void {
    for (const pending of this.#pending) {
      this.#giveUp(pending);
      this.#settle(pending);
    }
    this.#pending = [];
    // Its commands may have been introduced in what was given up.
    this.#endActive();
  }

  #giveUp({ batch, ended }: Pending): void {
    this.#options.metrics.dropped(batch.dataBytes);
    this.#unwrittenEnds.push(...ended);
  }

  #settle({ batch, sequence }: Pending): void {
    this.#settled = Math.max(this.#settled, sequence);
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
    if (this.#failure === undefined) this.#options.metrics.failed();
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

function addEnd(command: Recorded, { batch, target, ended }: Pending): void {
  const { offset, end } = command;
  if (end === undefined) return;
  const number = numberOf(command, { batch, target });
  batch.addRecord({ kind: "end", number, offset, end });
  ended.push(command);
}

/** Introduces the command to the segment with the first that is recorded of it there. */
function numberOf(command: Recorded, { batch, target }: Pick<Pending, "batch" | "target">): number {
  const known = target.numbers.get(command);
  if (known !== undefined) return known;
  const number = target.numbers.size;
  target.numbers.set(command, number);
  const { id, pid, path, tag, startedAtMs, offset } = command;
  batch.addRecord({ kind: "start", number, id, pid, path, tag, startedAtMs, offset });
  return number;
}
