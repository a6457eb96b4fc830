import { lstatSync, type Stats } from "node:fs";
import { lstat } from "node:fs/promises";
import { join, posix } from "node:path";
import { type Clock, SandboxError, messageOf } from "@coppice/core";
import type { FileInfo, WatchEvent } from "@coppice/core/backend";
import { Departures } from "./departures.js";
import type { EventBuffer } from "./event-buffer.js";
import { HostTree } from "./host-tree.js";
import { type EntryState, ObservedEntries, stateOf } from "./observed-entries.js";

/** What the file service did, or is about to do: to `path`, which for a move was `source` before. */
export interface Change {
  readonly path: string;
  readonly source?: string | undefined;
}

export interface HostWatchOptions {
  /** Absolute, inside the sandbox. */
  readonly path: string;
  /** The same directory on the host. */
  readonly hostPath: string;
  readonly recursive: boolean;
  readonly buffer: EventBuffer;
  readonly maxEntries: number;
  readonly clock: Clock;
}

/** A name that the file service is changing, so that the host's news of it has to wait. */
interface Hold {
  readonly name: string;
  /** Everything below the name is held too. */
  readonly isWhole: boolean;
  /** The host has seen something of it. */
  isStirred: boolean;
}

/** What happens to an entry within this time is looked at once: more than chokidar holds changes of a file together. */
const SETTLE_MS = 100;
/** The two halves of a move, a few milliseconds apart on a machine that has time. */
const MOVE_MS = 150;
/** Names that the file service took away and that the host's news of may still be on its way. */
const MOST_DEPARTED = 1_000;

/**
 * A watch on the host's side of a sandbox's directory.
 *
 * Exact are writes, moves and new directories that went through the file service, told by it the moment they are done;
 * and entries that come, go, are moved, change size, time or permissions. These are not: what happens to an entry between
 * two looks is told once, one that is moved into the watch is CREATE and WRITE, one that is moved out of it is REMOVE, and
 * changes of owner or extended attributes alone are not told.
 */
export class HostWatch {
  readonly #options: HostWatchOptions;
  readonly #entries = new ObservedEntries();
  readonly #departures: Departures;
  readonly #held = new Set<Hold>();
  /** In the order in which they went. */
  readonly #departed = new Set<string>();
  /** What ends the wait for one more look, by name. */
  readonly #settling = new Map<string, () => void>();
  readonly #tree: HostTree;
  /** Why the watch cannot go on. */
  #failure: SandboxError | undefined;
  #isReady = false;

  constructor(options: HostWatchOptions) {
    this.#options = options;
    const { clock, buffer, hostPath, recursive } = options;
    this.#tree = new HostTree({
      path: hostPath,
      recursive,
      events: {
        seen: (name, stats) => this.#sees(name, stats),
        gone: (name) => this.#misses(name),
        stirred: (name) => this.#stirs(name),
        failed: (error) => this.#fail(watchFailure(error)),
      },
    });
    this.#departures = new Departures({ clock, moveMs: MOVE_MS, emit: (event) => buffer.push(event) });
  }

  /** Resolves when everything that is there is known: any change from now on is seen. @throws SandboxError */
  async start(): Promise<void> {
    await this.#tree.start();
    if (this.#failure !== undefined) throw this.#failure;
    this.#isReady = true;
  }

  async close(): Promise<void> {
    for (const cancel of this.#settling.values()) cancel();
    this.#settling.clear();
    this.#departures.close();
    await this.#tree.close();
  }

  /**
   * Keeps back what the host sees of a change by the file service.
   * @returns to be called when the change is done, with what it made, or has failed.
   */
  hold(change: Change): (info: FileInfo | undefined) => void {
    const to = this.#nameOf(change.path);
    const from = change.source === undefined ? undefined : this.#nameOf(change.source);
    const above = this.#directoryAbove(change.path);
    // What comes in from outside of the watch has entries below it that nobody here knows yet.
    const isWhole = from !== undefined;
    const holds = [to ?? above, from]
      .filter((name) => name !== undefined)
      .map((name): Hold => ({ name, isWhole, isStirred: false }));
    for (const hold of holds) this.#held.add(hold);
    return (info) => {
      for (const hold of holds) this.#held.delete(hold);
      if (info === undefined) {
        for (const { name, isStirred } of holds) if (isStirred) void this.#lookAgain(name);
        return;
      }
      if (to !== undefined) this.#departed.delete(to);
      if (above !== undefined) this.#report(this.#entries.made(above));
      if (change.source !== undefined) {
        if (from !== undefined) this.#depart(from);
        if (holds.length > 0) this.#report(this.#entries.moved(from, to, this.#stateOf(to, info)));
      } else if (to !== undefined && info.kind === "directory") {
        this.#report(this.#entries.made(to, this.#stateOf(to, info)));
      } else if (to !== undefined) {
        this.#report(this.#entries.written(to, this.#stateOf(to, info)));
      }
    };
  }

  removed(path: string): void {
    const name = this.#nameOf(path);
    if (name === undefined) return;
    this.#departures.giveUp(name, (gone) => this.#entries.miss(gone));
    this.#depart(name);
    // Nobody may tell of what was below it and had not been seen yet.
    void this.#lookAgain(name, { isTree: true });
  }

  #sees(name: string, stats: Stats): void {
    if (name === "." || this.#isHeld(name)) return;
    if (!this.#isReady) this.#entries.learn(name, seenState(stats));
    else if (this.#hasDeparted(name)) void this.#lookAgain(name);
    else {
      this.#comes(name, stats);
      this.#settle(name);
    }
    const { maxEntries, path } = this.#options;
    if (this.#entries.size <= maxEntries) return;
    this.#fail(
      new SandboxError("resource_exhausted", `more than ${maxEntries} entries to watch below ${path}`),
    );
  }

  #misses(name: string): void {
    if (name === ".") this.#report([{ name, type: "remove" }]);
    else if (!this.#isHeld(name)) this.#goes(name);
  }

  /** chokidar tells nothing of a directory's permissions, nor of those of a file that was read since it was written. */
  #stirs(name: string): void {
    if (this.#isReady && !this.#isHeld(name)) this.#settle(name);
  }

  #fail(failure: SandboxError): void {
    this.#failure ??= failure;
    this.#options.buffer.fail(failure);
    void this.close();
  }

  /** The host says that an entry is gone; whether it was moved is open. */
  #goes(name: string): void {
    if (this.#departures.has(name)) return;
    const identity = this.#entries.identityOf(name);
    if (identity === undefined) this.#report(this.#entries.missTree(name));
    else this.#departures.depart(name, identity, () => this.#entries.missTree(name));
  }

  /** The host has seen an entry: one that was known by another name has been moved. */
  #comes(name: string, stats: Stats): void {
    const state = seenState(stats);
    const { identity } = state;
    const known = this.#entries.identityOf(name);
    if (identity !== undefined && identity !== known) {
      const gone = this.#departures.nameOf(identity);
      if (gone !== undefined && gone !== name) {
        this.#departures.arrive(identity, this.#entries.moved(gone, name, state));
        return;
      }
      const other = this.#entries.nameOf(identity);
      // A file with two names has them both: that is a link, and no move.
      if (other !== undefined && other !== name && (stats.isDirectory() || stats.nlink === 1)) {
        this.#report(this.#entries.moved(other, name, state));
        return;
      }
    }
    if (this.#departures.has(name)) this.#departures.giveUp(name, (gone) => this.#entries.miss(gone));
    // What has come as another name of what is known was not written.
    const isLink =
      known === undefined && identity !== undefined && this.#entries.nameOf(identity) !== undefined;
    this.#report(this.#entries.see(name, state, stats.isFile() && !isLink));
  }

  /** One more look when it has come to rest. */
  #settle(name: string): void {
    this.#settling.get(name)?.();
    const look = (): void => {
      this.#settling.delete(name);
      void this.#lookAgain(name);
    };
    this.#settling.set(name, this.#options.clock.after(SETTLE_MS, look));
  }

  /** News of it that is still on its way is of what was there before. */
  #depart(name: string): void {
    this.#departed.add(name);
    for (const oldest of this.#departed) {
      if (this.#departed.size <= MOST_DEPARTED) break;
      this.#departed.delete(oldest);
    }
  }

  #hasDeparted(name: string): boolean {
    for (let at = name; at !== "."; at = posix.dirname(at)) if (this.#departed.has(at)) return true;
    return false;
  }

  /** What the host told may be old by now, or may have been somebody else's: what counts is what is there. */
  async #lookAgain(name: string, { isTree = false } = {}): Promise<void> {
    try {
      const stats = await lstat(join(this.#options.hostPath, name));
      if (this.#isHeld(name)) return;
      this.#departed.delete(name);
      this.#comes(name, stats);
    } catch {
      if (isTree) this.#report(this.#entries.missTree(name));
      else this.#goes(name);
    }
  }

  /** Whether the file service is at it; then it will be looked at when that is done. */
  #isHeld(name: string): boolean {
    const holds = [...this.#held].filter((hold) => isHeld(name, hold));
    for (const hold of holds) hold.isStirred = true;
    return holds.length > 0;
  }

  #report(events: readonly WatchEvent[]): void {
    this.#departures.report(events);
  }

  /** What is there now; as it was told where nothing is any more. */
  #stateOf(name: string | undefined, info: FileInfo): EntryState {
    if (name === undefined) return stateOf(info);
    try {
      return seenState(lstatSync(join(this.#options.hostPath, name)));
    } catch {
      return stateOf(info);
    }
  }

  /** The name of a path in this watch, undefined when it is outside. */
  #nameOf(path: string): string | undefined {
    const name = this.#below(path);
    return name === undefined || (!this.#options.recursive && name.includes("/")) ? undefined : name;
  }

  /** The directory of this watch that a path is in which is itself too deep for it. */
  #directoryAbove(path: string): string | undefined {
    const [first, ...rest] = this.#below(path)?.split("/") ?? [];
    return this.#options.recursive || rest.length === 0 ? undefined : first;
  }

  #below(path: string): string | undefined {
    const name = posix.relative(posix.normalize(this.#options.path), posix.normalize(path));
    return name === "" || name === ".." || name.startsWith("../") ? undefined : name;
  }
}

function isHeld(name: string, hold: Hold): boolean {
  return name === hold.name || (hold.isWhole && name.startsWith(`${hold.name}/`));
}

function seenState(stats: Stats): EntryState {
  const state = stateOf({ sizeBytes: stats.size, modifiedAtMs: stats.mtimeMs, rawMode: stats.mode });
  return { ...state, identity: identityOf(stats) };
}

/** By its birth an inode is told from the next one of its number; undefined where the file system has no births. */
function identityOf({ dev, ino, birthtimeMs }: Stats): string | undefined {
  return birthtimeMs > 0 ? `${dev}:${ino}:${birthtimeMs}` : undefined;
}

function watchFailure(error: unknown): SandboxError {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return code === "ENOSPC" || code === "EMFILE"
    ? new SandboxError("resource_exhausted", "this host has no file watches left", { cause: error })
    : new SandboxError("internal", `the watch failed: ${messageOf(error)}`, { cause: error });
}
