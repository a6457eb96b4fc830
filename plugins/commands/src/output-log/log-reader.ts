import { ignoring, releaseMemory, SandboxError } from "@coppice/core";
import type {
  CommandEnd,
  CommandPhase,
  LoggedCommand,
  LoggedPiece,
  LogPage,
  LogPageRequest,
  LogSelector,
  SandboxLogs,
} from "../contract/commands.js";
import { type IndexCache, readRecords } from "./segment-file.js";
import type { LogWriter } from "./log-writer.js";
import type { SandboxLog, Segment } from "./sandbox-log.js";
import { type DataRecord, SEGMENT_MAGIC } from "./segment-codec.js";
import type { IndexedCommand } from "./segment-index.js";
import { REASONS } from "../reasons.js";

interface LogReaderOptions {
  readonly sandboxId: string;
  /** Called each time: a log may begin or be removed while it has a reader. */
  readonly findLog: () => SandboxLog | undefined;
  readonly findWriter: () => LogWriter | undefined;
  readonly indices: IndexCache;
}

export interface OutputRange {
  readonly from: number;
  /** Offset after the last byte; all output when absent. */
  readonly until?: number | undefined;
}

const LARGE_PIECE_BYTES = 64 * 1024;

/** Reads the log of one sandbox while it is being written. */
export class LogReader implements SandboxLogs {
  readonly #options: LogReaderOptions;

  constructor(options: LogReaderOptions) {
    this.#options = options;
  }

  get #writer(): LogWriter | undefined {
    return this.#options.findWriter();
  }

  /** The current segments, oldest first. */
  get #segments(): readonly Segment[] {
    return [...(this.#options.findLog()?.segments ?? [])];
  }

  async find(selector: LogSelector): Promise<LoggedCommand> {
    await this.#writer?.flush();
    const open = selector.id === undefined ? undefined : this.#writer?.open.get(selector.id);
    if (open !== undefined) return this.#describe({ ...open, outputBytes: open.offset });
    for await (const command of this.#newestFirst()) {
      if (isMeant(command, selector)) return command;
    }
    throw new SandboxError(REASONS.process_log_not_found, `no log of the process with ${describe(selector)}`);
  }

  async *list(): AsyncGenerator<LoggedCommand> {
    await this.#writer?.flush();
    yield* this.#newestFirst();
  }

  async page(id: string, { cursor, limitBytes }: LogPageRequest): Promise<LogPage> {
    const command = await this.find({ id });
    const pieces: LoggedPiece[] = [];
    let bytes = 0;
    let nextCursor = cursor;
    for await (const piece of this.output(id, { from: cursor })) {
      // The next page begins with a whole piece: a large one that is cut would be read twice.
      const room = limitBytes - bytes;
      if (piece.data.length > Math.max(room, LARGE_PIECE_BYTES) && bytes >= room) break;
      const data = piece.data.subarray(0, limitBytes - bytes);
      if (data.length > 0) {
        pieces.push({ ...piece, data });
        nextCursor = piece.offset + data.length;
      }
      bytes += data.length;
      if (bytes >= limitBytes) break;
    }
    // Nothing from here on was kept: the next request continues with new output.
    if (pieces.length === 0 && limitBytes > 0) nextCursor = Math.max(cursor, command.outputBytes);
    const first = pieces[0]?.offset ?? nextCursor;
    const truncatedBefore = first > cursor ? first : undefined;
    return { command, pieces, nextCursor, truncatedBefore, release: () => release(pieces) };
  }

  /** The kept part of a range of a command's output, in order. Output that a limit removes meanwhile is left out. */
  async *output(id: string, { from, until = Infinity }: OutputRange): AsyncGenerator<LoggedPiece> {
    await this.#writer?.flush();
    let next = from;
    for (const segment of this.#segments) {
      if (next >= until) return;
      const index = await this.#options.indices.load(segment);
      const entry = index?.find(id);
      const position = entry && index?.positionOf(entry.number, next);
      if (entry === undefined || position === undefined) continue;
      for await (const { record: piece, endsAt } of this.#pieces(segment, position, index?.endsAt)) {
        if (piece.number !== entry.number || piece.offset + piece.data.length <= next) continue;
        if (piece.offset >= until) return;
        const start = Math.max(0, next - piece.offset);
        const data = piece.data.subarray(start, until - piece.offset);
        const offset = piece.offset + start;
        next = offset + data.length;
        yield { stream: piece.stream, data, offset, atMs: piece.atMs };
        const isWhole = next === piece.offset + piece.data.length;
        if (isWhole) index?.noteRead(entry.number, next, endsAt);
      }
    }
  }

  async *outputSince(sinceMs: number): AsyncGenerator<LoggedPiece & { readonly id: string }> {
    await this.#writer?.flush();
    for (const segment of this.#segments) {
      if (segment.writtenAtMs < sinceMs) continue;
      const index = await this.#options.indices.load(segment);
      if (index === undefined) continue;
      const ids = new Map<number, string>();
      for (const { number, id } of index.commands()) ids.set(number, id);
      for await (const { record } of this.#pieces(segment, SEGMENT_MAGIC.length, index.endsAt)) {
        const { stream, data, offset, atMs } = record;
        const id = ids.get(record.number);
        if (id !== undefined && atMs >= sinceMs) yield { id, stream, data, offset, atMs };
      }
    }
  }

  /** Offset of the first kept byte of a command at or after `offset`; undefined when none is kept. */
  async keptFrom(id: string, offset: number): Promise<number | undefined> {
    await this.#writer?.flush();
    for (const segment of this.#segments) {
      const index = await this.#options.indices.load(segment);
      const entry = index?.find(id);
      if (entry === undefined || index?.positionOf(entry.number, offset) === undefined) continue;
      return Math.max(offset, entry.first);
    }
    return undefined;
  }

  async *#pieces(
    segment: Segment,
    from: number,
    to: number | undefined,
  ): AsyncGenerator<{ readonly record: DataRecord; readonly endsAt: number }> {
    if (segment.isGone) return;
    segment.readers += 1;
    try {
      for await (const { record, endsAt } of readRecords(segment, { from, to })) {
        if (record.kind === "data") yield { record, endsAt };
        else if (record.kind === "index") return;
      }
    } catch (error) {
      // A limit removed it meanwhile.
      ignoring("ENOENT")(error);
    } finally {
      segment.readers -= 1;
    }
  }

  async *#newestFirst(): AsyncGenerator<LoggedCommand> {
    const seen = new Set<string>();
    const open = [...(this.#writer?.open.values() ?? [])].reverse();
    for (const command of open) {
      seen.add(command.id);
      yield this.#describe({ ...command, outputBytes: command.offset });
    }
    for (const segment of this.#segments.toReversed()) {
      const index = await this.#options.indices.load(segment);
      for (const entry of [...(index?.commands() ?? [])].reverse()) {
        if (seen.has(entry.id)) continue;
        seen.add(entry.id);
        yield this.#describe(entry);
      }
    }
  }

  #describe(entry: Omit<IndexedCommand, "number" | "first" | "next">): LoggedCommand {
    const { id, pid, path, tag, startedAtMs, end, outputBytes } = entry;
    const isRunning = end === undefined && this.#writer?.open.has(id) === true;
    const phase = isRunning ? "running" : phaseOf(end);
    const { sandboxId } = this.#options;
    return { id, sandboxId, pid, path, tag, startedAtMs, phase, end, outputBytes };
  }
}

function release(pieces: readonly LoggedPiece[]): void {
  // Several pieces come from one read, whose memory is theirs alone.
  const reads = new Set(pieces.map(({ data }) => data.buffer));
  for (const memory of reads) releaseMemory(Buffer.from(memory));
}

// A command without a recorded end was lost with its server.
function phaseOf(end: CommandEnd | undefined): CommandPhase {
  if (end?.exit === undefined) return "lost";
  return end.outcome === "killed" ? "killed" : "exited";
}

function isMeant({ id, pid, tag }: LoggedCommand, selector: LogSelector): boolean {
  if (selector.id !== undefined) return id === selector.id;
  return selector.tag === undefined ? pid === selector.pid : tag === selector.tag;
}

function describe({ id, pid, tag }: LogSelector): string {
  if (id !== undefined) return `id ${id}`;
  return tag === undefined ? `pid ${pid}` : `tag ${tag}`;
}
