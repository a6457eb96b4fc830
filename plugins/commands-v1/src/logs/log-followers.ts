import type { OutputPage, OutputPiece, StartedCommand } from "@coppice/plugin-commands";

/** New output of a command that is kept for its followers: what they read otherwise is in the log's file. */
const RECENT_BYTES = 64 * 1024;

interface Watched {
  followers: number;
  readonly end: AbortController;
  /** At most one of each follower: a shared promise would keep the reactions of those that have left. */
  readonly waiting: Set<PromiseWithResolvers<void>>;
  /** Reads since the last output, by what they read. */
  readonly reads: Map<string, Promise<unknown>>;
  /** The newest output, without gaps. */
  readonly recent: OutputPiece[];
  recentBytes: number;
  isOver: boolean;
}

/** A command that is watched. */
interface FollowedLog extends Disposable {
  /**
   * Take it before the log is read: it resolves for output that is recorded afterwards, and at the end. It is void when
   * the next one is taken.
   */
  grown(): Promise<void>;
  /** Reads once for all followers that read the same since the last output. */
  share<T>(what: string, read: () => Promise<T>): Promise<T>;
  /** A page of a running command from memory; undefined when the log has to be read. */
  recent(cursor: number, limitBytes: number): OutputPage | undefined;
}

/**
 * Wakes the followers of commands when there is more output. A command has one subscription for all its followers, which
 * reads on at once: a slow follower holds neither the command nor another follower.
 */
export class LogFollowers {
  readonly #watched = new Map<string, Watched>();

  /** Watches a command until the disposal. */
  watch(command: StartedCommand): FollowedLog {
    const { id } = command;
    const watched = this.#watched.get(id) ?? this.#begin(command);
    watched.followers += 1;
    let mine = Promise.withResolvers<void>();
    return {
      grown: () => {
        watched.waiting.delete(mine);
        mine = Promise.withResolvers();
        watched.waiting.add(mine);
        return mine.promise;
      },
      share: <T>(what: string, read: () => Promise<T>) => {
        const shared = (watched.reads.get(what) as Promise<T> | undefined) ?? read();
        watched.reads.set(what, shared);
        return shared;
      },
      recent: (cursor, limitBytes) => recentPage(watched, cursor, limitBytes),
      [Symbol.dispose]: () => {
        watched.waiting.delete(mine);
        watched.followers -= 1;
        if (watched.followers > 0) return;
        watched.end.abort();
        if (this.#watched.get(id) === watched) this.#watched.delete(id);
      },
    };
  }

  #begin(command: StartedCommand): Watched {
    const watched: Watched = {
      followers: 0,
      end: new AbortController(),
      waiting: new Set(),
      reads: new Map(),
      recent: [],
      recentBytes: 0,
      isOver: false,
    };
    this.#watched.set(command.id, watched);
    void this.#read(command, watched).catch(() => end(watched));
    return watched;
  }

  async #read(command: StartedCommand, watched: Watched): Promise<void> {
    for await (const piece of command.subscribe(watched.end.signal)) {
      keep(watched, piece);
      wake(watched);
    }
    // By now the log has the end.
    end(watched);
  }
}

function end(watched: Watched): void {
  watched.isOver = true;
  wake(watched);
}

function wake(watched: Watched): void {
  const waiting = [...watched.waiting];
  watched.waiting.clear();
  watched.reads.clear();
  for (const { resolve } of waiting) resolve();
}

function keep(watched: Watched, piece: OutputPiece): void {
  const { recent } = watched;
  recent.push(piece);
  watched.recentBytes += piece.data.length;
  while (watched.recentBytes > RECENT_BYTES) watched.recentBytes -= recent.shift()?.data.length ?? 0;
}

function endOf(piece: OutputPiece | undefined): number {
  return piece === undefined ? 0 : piece.offset + piece.data.length;
}

/** What a piece has between two offsets, one of which is in it. */
function partOf(piece: OutputPiece, from: number, to: number): OutputPiece {
  if (piece.offset >= from && endOf(piece) <= to) return piece;
  const data = piece.data.subarray(Math.max(0, from - piece.offset), Math.max(0, to - piece.offset));
  return { ...piece, data, offset: Math.max(from, piece.offset) };
}

function recentPage({ recent, isOver }: Watched, cursor: number, limitBytes: number): OutputPage | undefined {
  const last = recent.at(-1);
  if (isOver || last === undefined || cursor < (recent[0]?.offset ?? 0)) return undefined;
  const end = last.offset + last.data.length;
  const nextCursor = Math.min(cursor + limitBytes, end);
  if (nextCursor < cursor) return undefined;
  // From the end: a follower mostly lacks the newest pieces alone, and a terminal can have thousands of a byte.
  let first = recent.length;
  while (first > 0 && endOf(recent[first - 1]) > cursor) first -= 1;
  const pieces: OutputPiece[] = [];
  for (let index = first; index < recent.length; index += 1) {
    const piece = recent[index];
    if (piece === undefined || piece.offset >= nextCursor) break;
    pieces.push(partOf(piece, cursor, nextCursor));
  }
  const command = { phase: "running", end: undefined, outputBytes: end } as const;
  return { command, pieces, nextCursor, truncatedBefore: undefined, release: () => undefined };
}
