import { mkdir, readdir, stat } from "node:fs/promises";
import { basename, extname, join } from "node:path";
import {
  type Clock,
  DEFAULT_TENANT,
  type Logger,
  messageOf,
  SandboxError,
  type SandboxRecord,
  Semaphore,
  digestOf,
} from "@coppice/core";
import type { OutputLogConfig } from "../commands-config.js";
import type { LoggedPiece, SandboxLogs } from "../contract/commands.js";
import { IndexCache } from "./segment-file.js";
import {
  type Excess,
  excessInTotal,
  excessOfSandbox,
  type LogFiles,
  type RetentionLimits,
} from "./log-files.js";
import type { LogMetrics } from "./log-metrics.js";
import { LogReader, type OutputRange } from "./log-reader.js";
import { type CommandHeading, LogWriter, type Recorder } from "./log-writer.js";
import { SandboxLog, type Segment } from "./sandbox-log.js";
import { SpareBuffers } from "./log-batch.js";
import { REASONS } from "../reasons.js";

interface OutputLogsOptions {
  readonly config: OutputLogConfig;
  readonly files: LogFiles;
  readonly clock: Clock;
  readonly log: Logger;
  readonly metrics: LogMetrics;
}

/** A sandbox whose commands are logged. */
type LoggedSandbox = Pick<SandboxRecord, "id" | "owner">;

/** The log of one running command: records its output and plays it back. */
export interface CommandRecording extends Recorder {
  output(range: OutputRange): AsyncIterable<LoggedPiece>;
  /** Offset of the first kept byte at or after this one; undefined when none is kept. */
  keptFrom(offset: number): Promise<number | undefined>;
}

// The oldest output of a sandbox is removed in this fraction of its limit. Smaller segments cost a flood more of the
// kernel's time than writing it does.
const SEGMENTS_PER_LIMIT = 8;
const MIN_SEGMENT_BYTES = 64 * 1024;
const MAX_SEGMENT_BYTES = 16 * 1024 * 1024;
// Many short commands make small segments, so their number is bounded as well as their size.
const MAX_SEGMENTS = 8 * SEGMENTS_PER_LIMIT;
const CACHED_COMMANDS = 20_000;
/** How often output that is too old is looked for. */
const SWEEP_INTERVAL_MS = 60_000;
const LOOKS_AT_ONCE = 16;

/** Logged output of commands: a log for each sandbox, below one directory. */
export class OutputLogs {
  readonly #options: OutputLogsOptions;
  readonly #limits: RetentionLimits;
  readonly #spares = new SpareBuffers();
  readonly #indices = new IndexCache(CACHED_COMMANDS);
  readonly #logs = new Map<string, SandboxLog>();
  readonly #writers = new Map<string, LogWriter>();
  /** Writers of ended sandboxes, until everything is on disk. */
  readonly #closing = new Map<LogWriter, Promise<void>>();
  readonly #failures = new Map<string, string>();
  /** Directory of the logs; undefined while there is none to write to. */
  #directory: string | undefined;
  /** Approximates `bytes` without counting; each sweep corrects it. */
  #finishedBytes = 0;
  #cancelSweep: (() => void) | undefined;
  readonly #sweeps = new Semaphore();

  constructor(options: OutputLogsOptions) {
    this.#options = options;
    this.#limits = { ...options.config, maxSegmentsPerSandbox: MAX_SEGMENTS };
  }

  get bytes(): number {
    let bytes = 0;
    for (const log of this.#logs.values()) bytes += log.bytes;
    return bytes;
  }

  /**
   * Finds the logs of earlier servers, and begins to record. Never rejects: where `directory` throws or is not
   * writable, commands run without a log and `check` says why.
   */
  async open(directory: () => string): Promise<void> {
    if (!this.#options.config.enabled) return;
    try {
      const path = directory();
      await this.#findLogs(path);
      this.#directory = path;
    } catch (error) {
      this.#note("", messageOf(error));
      return;
    }
    this.#sweepLater();
    await this.sweep();
  }

  begin(sandbox: LoggedSandbox, heading: CommandHeading): CommandRecording | undefined {
    const writer = this.#writerFor(sandbox);
    if (writer === undefined) return undefined;
    const reader = this.#reader(sandbox.id);
    return {
      ...writer.begin(heading),
      output: (range) => reader.output(heading.id, range),
      keptFrom: (offset) => reader.keptFrom(heading.id, offset),
    };
  }

  of(sandboxId: string): SandboxLogs {
    return this.#reader(sandboxId);
  }

  /** Finishes the log of an ended sandbox, which is kept until a limit removes it. */
  release(sandboxId: string): void {
    const writer = this.#writers.get(sandboxId);
    if (writer === undefined) return;
    this.#writers.delete(sandboxId);
    const closing = writer.close().finally(() => this.#closing.delete(writer));
    this.#closing.set(writer, closing);
  }

  /** @throws SandboxError unavailable with the reason why output is not recorded. */
  check(): void {
    const [reason] = this.#failures.values();
    if (reason !== undefined)
      throw new SandboxError(REASONS.log_unavailable, `output is not logged: ${reason}`);
  }

  /** Removes segments beyond the limits. Never rejects. */
  sweep(): Promise<void> {
    return this.#sweeps.run(async () => {
      const nowMs = this.#options.clock.now();
      for (const log of this.#logs.values()) await this.#removeAll(excessOfSandbox(log, this.#limits, nowMs));
      await this.#removeAll(excessInTotal(this.#logs.values(), this.#limits));
      this.#finishedBytes = this.bytes;
      for (const [id, log] of this.#logs) {
        if (log.segments.length === 0 && !this.#writers.has(id)) this.#logs.delete(id);
      }
    });
  }

  async close(): Promise<void> {
    this.#cancelSweep?.();
    for (const sandboxId of this.#writers.keys()) this.release(sandboxId);
    await Promise.all(this.#closing.values());
    await this.#sweeps.run(() => undefined);
    this.#directory = undefined;
  }

  #reader(sandboxId: string): LogReader {
    return new LogReader({
      sandboxId,
      findLog: () => this.#logs.get(sandboxId),
      findWriter: () =>
        this.#writers.get(sandboxId) ??
        [...this.#closing.keys()].findLast((writer) => writer.sandboxId === sandboxId),
      indices: this.#indices,
    });
  }

  #writerFor({ id: sandboxId, owner }: LoggedSandbox): LogWriter | undefined {
    const writer = this.#writers.get(sandboxId);
    if (writer !== undefined || this.#directory === undefined) return writer;
    const { config, files, clock, metrics } = this.#options;
    const log =
      this.#logs.get(sandboxId) ??
      new SandboxLog(sandboxId, join(this.#directory, sandboxId + ownerSuffix(owner)));
    this.#logs.set(sandboxId, log);
    const created = new LogWriter({
      log,
      files,
      clock,
      metrics,
      spares: this.#spares,
      config,
      segmentBytes: segmentBytes(config.maxPerSandbox),
      onFailure: (reason) => this.#note(sandboxId, reason),
      takeOldest: () => this.#takeOldest(log),
      onRotate: (bytes) => {
        this.#finishedBytes += bytes;
        void this.#trim(log);
      },
    });
    this.#writers.set(sandboxId, created);
    return created;
  }

  /** Removes from the log the segment that the next one would displace, unless it has readers. */
  #takeOldest(log: SandboxLog): Segment | undefined {
    const { maxPerSandbox } = this.#options.config;
    const [oldest] = log.segments;
    const isSpare = oldest !== undefined && oldest.index === undefined && oldest.readers === 0;
    if (!isSpare || log.bytes + segmentBytes(maxPerSandbox) <= maxPerSandbox) return undefined;
    this.#forget(log, oldest);
    return oldest;
  }

  #forget(log: SandboxLog, segment: Segment): void {
    if (!log.delete(segment)) return;
    this.#indices.forget(segment);
    this.#options.metrics.removed.inc(segment.bytes);
    this.#finishedBytes -= segment.bytes;
  }

  /** Runs after a segment was finished: only then a log can exceed its size. */
  #trim(log: SandboxLog): Promise<void> {
    return this.#sweeps.run(async () => {
      await this.#removeAll(excessOfSandbox(log, this.#limits, this.#options.clock.now()));
      if (this.#finishedBytes > this.#limits.maxTotal)
        await this.#removeAll(excessInTotal(this.#logs.values(), this.#limits));
    });
  }

  async #removeAll(excess: readonly Excess[]): Promise<void> {
    const { files, log: logger } = this.#options;
    for (const { log, segment } of excess) {
      // Its file was reused meanwhile.
      if (segment.isGone) continue;
      try {
        if (segment.index !== undefined) await this.#writers.get(log.sandboxId)?.finish(segment);
        await files.remove(segment.path);
        this.#forget(log, segment);
        if (log.segments.length === 0) await files.removeDirectory(log.directory);
      } catch (error) {
        logger.warn({ err: error, sandbox: log.sandboxId }, "a file of the output log cannot be removed");
        return;
      }
    }
  }

  #sweepLater(): void {
    this.#cancelSweep = this.#options.clock.after(SWEEP_INTERVAL_MS, () => {
      void this.sweep();
      this.#sweepLater();
    });
  }

  #note(sandboxId: string, reason: string | undefined): void {
    if (reason === undefined) {
      if (this.#failures.delete(sandboxId))
        this.#options.log.info({ sandbox: sandboxId }, "output is logged again");
      return;
    }
    if (!this.#failures.has(sandboxId))
      this.#options.log.error({ sandbox: sandboxId, reason }, "output is not logged");
    this.#failures.set(sandboxId, reason);
  }

  async #findLogs(directory: string): Promise<void> {
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const names = (await readdir(directory, { withFileTypes: true }))
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => name);
    const look = async (): Promise<void> => {
      for (let name = names.pop(); name !== undefined; name = names.pop()) {
        try {
          const log = await findLog(join(directory, name));
          if (log.segments.length > 0) this.#logs.set(log.sandboxId, log);
        } catch (error) {
          this.#options.log.warn(
            { err: error, directory: name },
            "the output log of a sandbox cannot be read",
          );
        }
      }
    };
    await Promise.all(Array.from({ length: LOOKS_AT_ONCE }, look));
  }
}

/** Part of a directory's name by which the logs of a tenant are known after a restart, whatever its name has in it. */
function ownerSuffix(tenant: string): string {
  if (tenant === DEFAULT_TENANT) return "";
  return `.${digestOf(tenant).slice(0, 16)}`;
}

async function findLog(directory: string): Promise<SandboxLog> {
  const log = new SandboxLog(basename(directory, extname(directory)), directory);
  for (const name of await readdir(directory)) {
    const { size, mtimeMs } = await stat(join(directory, name));
    log.adopt(name, { bytes: size, writtenAtMs: mtimeMs });
  }
  return log;
}

function segmentBytes(maxPerSandboxBytes: number): number {
  const part = Math.floor(maxPerSandboxBytes / SEGMENTS_PER_LIMIT);
  return Math.min(Math.max(part, MIN_SEGMENT_BYTES), MAX_SEGMENT_BYTES);
}
