import { type Stats, lstatSync } from "node:fs";
import { join, posix } from "node:path";
import { type Clock, SandboxError, messageOf } from "@coppice/core";
import type { FileInfo, WatchEvent, WatchEventType } from "@coppice/core/backend";
import { Departures } from "./departures.js";
import { type EntryState, isChangedSinceWritten, isWritten, stateOf } from "./entry-state.js";
import type { EventBuffer } from "./event-buffer.js";
import type { HeldNames } from "./held-names.js";
import { HostTree } from "./host-tree.js";
import { type News, NewsQueue } from "./news-queue.js";
import { ObservedEntries } from "./observed-entries.js";

/** An operation of the file service, done or about to be done, on `path`; for a move the path was `source` before. */
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
  readonly heldNames: HeldNames;
  readonly clock: Clock;
  /** See `HostTree`. */
  readonly namesEntries?: boolean | undefined;
}

/** A name that the file service is changing, so that the host's news of it has to wait. */
interface Hold {
  readonly name: string;
  /** Everything below the name is held too. */
  readonly isWhole: boolean;
  /** Names that the host has told of meanwhile. */
  readonly stirred: Set<string>;
}

/** How often entries are looked at where the host does not tell of their changes. */
const LOOK_MS = 500;
/** The two halves of a move, a few milliseconds apart on a machine that has time. */
const MOVE_MS = 150;
/** Granularity of a kernel's birth times. */
const TICK_MS = 10;
/** A change is visible before its event comes; it is waited for so long. */
const LATE_MS = 20;
/** How long the host's news of what the file service has done may be on its way, and the names for which that is kept in mind. */
const SERVED_MS = 1_000;
const MOST_SERVED = 1_000;

/**
 * A watch on the host's side of a sandbox's directory. The host tells that something has happened to an entry; what it was
 * is told by a look at it, and by how often its name came and went since the last one.
 *
 * Changes that went through the file service are told by it, the moment they are done. Of what processes do, these are
 * not told as inotify has them: what happens to an entry between two looks, a millisecond apart on a machine that has
 * time, is told once; and what is moved out of the watch is RENAME only where its name could be held (see `HeldNames`),
 * elsewhere REMOVE.
 */
export class HostWatch {
  readonly #options: HostWatchOptions;
  readonly #entries = new ObservedEntries();
  readonly #departures: Departures;
  readonly #news: NewsQueue;
  readonly #held = new Set<Hold>();
  /** When the file service has done something to a name, in that order. */
  readonly #served = new Map<string, number>();
  readonly #tree: HostTree;
  /** Why the watch cannot go on. */
  #failure: SandboxError | undefined;
  #isReady = false;
  #isClosed = false;
  /** The watched directory itself. */
  #isThere = true;
  #cancelLooks: (() => void) | undefined;

  constructor(options: HostWatchOptions) {
    this.#options = options;
    const { clock, buffer, hostPath, namesEntries } = options;
    this.#tree = new HostTree({
      path: hostPath,
      clock,
      namesEntries,
      events: {
        renamed: (name) => this.#news.renamed(name),
        changed: (name) => this.#news.changed(name),
        found: (name, unseenSinceMs) => this.#news.found(name, unseenSinceMs),
        stirred: (directory) => this.#stir((name) => posix.dirname(name) === directory),
        failed: (error) => this.#fail(watchFailure(error)),
        overflowed: () => this.#fail(overflow()),
      },
    });
    this.#news = new NewsQueue({ clock, look: (name, news) => this.#look(name, news) });
    this.#departures = new Departures({ clock, moveMs: MOVE_MS, emit: (event) => buffer.push(event) });
  }

  /** Resolves when everything that is there is known: any change from now on is seen. @throws SandboxError */
  async start(): Promise<void> {
    this.#tree.watch(".");
    do {
      await this.#tree.rest();
      await this.#news.rest();
    } while (!this.#tree.isAtRest);
    if (this.#failure !== undefined) throw this.#failure;
    this.#isReady = true;
    if (!this.#tree.namesEntries) this.#lookAtAll();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelLooks?.();
    this.#news.close();
    this.#departures.close();
    await Promise.all([this.#tree.close(), this.#entries.close()]);
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
      .map((name): Hold => ({ name, isWhole, stirred: new Set() }));
    for (const hold of holds) this.#held.add(hold);
    return (info) => {
      for (const hold of holds) this.#held.delete(hold);
      for (const { name } of holds) this.#serve(name);
      if (info !== undefined) this.#tell(info, { to, from, above, isMove: change.source !== undefined });
      for (const { stirred } of holds) for (const name of stirred) this.#news.look(name);
    };
  }

  removed(path: string): void {
    const name = this.#nameOf(path);
    if (name === undefined) return;
    this.#serve(name);
    // Somebody else may have made it again.
    if (this.#stateAt(name) !== undefined) return this.#news.look(name);
    this.#departures.giveUp(name);
    this.#report(this.#entries.missTree(name));
    this.#tree.forget(name);
  }

  /** Emits the event of an operation of the file service. */
  #tell(
    info: FileInfo,
    { to, from, above, isMove }: Record<"to" | "from" | "above", string | undefined> & { isMove: boolean },
  ): void {
    const state = to === undefined ? undefined : this.#stateAt(to);
    for (const name of [from, to]) if (name !== undefined) this.#departures.giveUp(name);
    if (above !== undefined) this.#report(this.#entries.made(above));
    if (isMove) {
      if (from !== undefined || to !== undefined) this.#report(this.#entries.moved(from, to, state));
      if (from !== undefined) this.#tree.forget(from);
    } else if (to !== undefined && info.kind === "directory") {
      this.#report(this.#entries.made(to, state));
    } else if (to !== undefined) {
      this.#report(this.#entries.written(to, { isEmpty: info.sizeBytes === 0, state }));
    }
    if (to !== undefined && state !== undefined) this.#know(to, state);
  }

  #fail(failure: SandboxError): void {
    if (this.#failure !== undefined) return;
    this.#failure = failure;
    this.#options.buffer.fail(failure);
    void this.close();
  }

  /** What the host told may be old by now, or may have been somebody else's: what counts is what is there. */
  #look(name: string, news: News): void {
    if (this.#isClosed || this.#keepsBack(name)) return;
    const state = this.#stateAt(name);
    if (name === ".") {
      if (state === undefined && this.#isThere) this.#report([{ name, type: "remove" }]);
      this.#isThere = state !== undefined;
    } else if (state === undefined) {
      this.#miss(name, news);
    } else {
      this.#see(name, state, news);
    }
    const { maxEntries, path } = this.#options;
    if (Math.max(this.#entries.size, this.#news.size) <= maxEntries) return;
    this.#fail(
      new SandboxError("resource_exhausted", `more than ${maxEntries} entries to watch below ${path}`),
    );
  }

  #miss(name: string, news: News): void {
    // What is below a directory that is gone went with it.
    if (this.#departures.has(name)) return;
    if (!this.#entries.has(name)) return this.#pass(name, news);
    this.#tree.forget(name);
    this.#tellLast(name, news);
    const identity = this.#entries.stateOf(name)?.identity;
    const isRemoved = this.#entries.heldOf(name)?.isRemoved();
    const onGone = (): readonly WatchEvent[] =>
      isRemoved === false ? this.#entries.leave(name) : this.#entries.missTree(name);
    if (isRemoved === true || identity === undefined || !this.#isReady) this.#report(onGone());
    else this.#departures.depart(name, identity, onGone);
  }

  /** What was changed of an entry before it went. */
  #tellLast(name: string, { isChanged }: News): void {
    const before = this.#entries.stateOf(name);
    if (!this.#isReady || !isChanged || before === undefined) return;
    const last = this.#entries.heldOf(name)?.state();
    if (last === undefined) {
      this.#report(this.#entries.see(name, before, before.kind === "file" ? ["write"] : ["chmod"]));
      return;
    }
    // That it went has changed it, too.
    const changedAtMs = Math.max(before.changedAtMs, last.modifiedAtMs);
    const state = { ...last, linkCount: before.linkCount, changedAtMs };
    this.#report(this.#entries.see(name, state, changesOf(state)));
  }

  /** An entry came and went before anybody looked at it. */
  #pass(name: string, news: News): void {
    const { renames, isChanged, followedBy } = news;
    if (!this.#isReady || renames === 0 || this.#isServed(name)) return;
    if (!news.isAll && (renames === 1 || followedBy === undefined)) {
      this.#news.defer(name, news, LATE_MS);
      return;
    }
    if (renames === 1) return;
    const isMoved = followedBy !== undefined && this.#isMovedIn(followedBy);
    this.#report([
      { name, type: "create" },
      ...(isChanged ? [{ name, type: "write" } as const] : []),
      { name, type: isMoved ? "rename" : "remove" },
    ]);
  }

  /** Whether a file that nobody has looked at yet has been moved to its name: nobody wrote there what is in it. */
  #isMovedIn(name: string): boolean {
    const state = this.#stateAt(name);
    const news = this.#news.of(name);
    if (state?.kind !== "file" || state.sizeBytes === 0 || state.linkCount > 1) return false;
    return news?.renames === 1 && !news.isChanged && state.identity !== this.#entries.stateOf(name)?.identity;
  }

  #see(name: string, state: EntryState, news: News): void {
    this.#departures.giveUp(name);
    const known = this.#entries.stateOf(name);
    const isKnown = this.#entries.has(name);
    const isSame = isKnown && (known?.identity ?? state.identity) === state.identity;
    // The watcher of a directory that was away for a moment may not know that it is back.
    if (isKnown && (!isSame || news.renames > 1)) this.#tree.forget(name);
    if (!this.#isReady) this.#entries.learn(name, state);
    else if (isSame) this.#report(this.#entries.see(name, state, news.isChanged ? changesOf(state) : []));
    else if (!this.#arrive(name, state, news)) return;
    this.#know(name, state);
  }

  /** An entry is there that was not, or was another one. @returns false when it is too early to tell. */
  #arrive(name: string, state: EntryState, news: News): boolean {
    const source = this.#sourceOf(state);
    if (this.#entries.has(name) && !this.#isServed(name)) {
      // What is moved over another entry is told by its coming alone; where it was removed before, that is told.
      if (news.renames > 1) this.#report(this.#replaced(name));
      else if (news.renames === 1 && source === undefined && !news.isAll) {
        this.#news.defer(name, news, LATE_MS);
        return false;
      }
    }
    if (source === undefined) {
      this.#report(this.#entries.appear(name, state, this.#sinceItCame(state, news)));
      return true;
    }
    this.#tree.forget(source);
    const events = this.#entries.moved(source, name, state);
    if (!this.#departures.arrive(state.identity, events)) this.#report(events);
    return true;
  }

  /** The name that an entry had before, when it has been moved. */
  #sourceOf({ identity, kind, linkCount }: EntryState): string | undefined {
    if (identity === undefined) return undefined;
    const known = this.#departures.nameOf(identity) ?? this.#entries.nameOf(identity);
    // A file with two names has them both: that is a link, and no move.
    return kind === "directory" || linkCount === 1 ? known : undefined;
  }

  /** What has happened to a new entry besides its coming; undefined while that is open. */
  #sinceItCame(state: EntryState, news: News): readonly WatchEventType[] | undefined {
    const linked = state.identity === undefined ? undefined : this.#entries.nameOf(state.identity);
    const known = linked === undefined ? undefined : this.#entries.stateOf(linked);
    if (known !== undefined) return isWritten(known, state) ? ["write"] : [];
    if (news.renames > 0) return news.isChanged ? changesOf(state) : undefined;
    // Nobody saw how it came: what was born when nobody looked was made there.
    const isMade = state.bornAtMs >= (news.unseenSinceMs ?? 0) - TICK_MS;
    return state.kind === "file" && state.sizeBytes > 0 && isMade ? ["write"] : [];
  }

  /** What became of an entry whose name another one has. */
  #replaced(name: string): readonly WatchEvent[] {
    return this.#entries.heldOf(name)?.isRemoved() === false
      ? this.#entries.leave(name)
      : this.#entries.missTree(name);
  }

  /** Keeps what it takes to tell of an entry that has been seen. */
  #know(name: string, { kind, identity }: EntryState): void {
    const { recursive, hostPath, heldNames } = this.#options;
    if (recursive && kind === "directory") this.#tree.watch(name);
    if (this.#isClosed || identity === undefined || this.#entries.heldOf(name) !== undefined) return;
    const held = heldNames.hold(join(hostPath, name), identity);
    if (held !== undefined) this.#entries.hold(name, held);
  }

  /** Something has happened to one of these, or to more. */
  #stir(isConcerned: (name: string) => boolean): void {
    for (const name of this.#entries.names) if (isConcerned(name)) this.#news.look(name);
  }

  #lookAtAll(): void {
    this.#stir(() => true);
    this.#cancelLooks = this.#options.clock.after(LOOK_MS, () => this.#lookAtAll());
  }

  /** News of it that is still on its way is of what the file service did. */
  #serve(name: string): void {
    this.#served.delete(name);
    this.#served.set(name, this.#options.clock.now());
    for (const oldest of this.#served.keys()) {
      if (this.#served.size <= MOST_SERVED) break;
      this.#served.delete(oldest);
    }
  }

  #isServed(name: string): boolean {
    const sinceMs = this.#options.clock.now() - SERVED_MS;
    for (let at = name; at !== "."; at = posix.dirname(at)) {
      if ((this.#served.get(at) ?? 0) > sinceMs) return true;
    }
    return false;
  }

  /** Whether the file service is at it; then it will be looked at when that is done. */
  #keepsBack(name: string): boolean {
    const holds = [...this.#held].filter((hold) => isHeld(name, hold));
    for (const { stirred } of holds) stirred.add(name);
    return holds.length > 0;
  }

  #report(events: readonly WatchEvent[]): void {
    this.#departures.report(events);
  }

  /** What is there now. */
  #stateAt(name: string): EntryState | undefined {
    let stats: Stats | undefined;
    try {
      stats = lstatSync(join(this.#options.hostPath, name), { throwIfNoEntry: false });
    } catch {
      // A directory above it is one no more, or is closed to everybody.
    }
    return stats && stateOf(stats);
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

/** What the changes of an entry come to that looks like this and has just come. */
function changesOf(state: EntryState): readonly WatchEventType[] {
  if (state.kind === "other") return [];
  if (state.kind === "directory" || state.sizeBytes === 0) return ["chmod"];
  return isChangedSinceWritten(state) ? ["write", "chmod"] : ["write"];
}

function overflow(): SandboxError {
  return new SandboxError(
    "resource_exhausted",
    "events were lost: more happened at once than the host keeps; watch the directory again",
  );
}

function watchFailure(error: unknown): SandboxError {
  const code = error instanceof Error && "code" in error ? error.code : undefined;
  return code === "ENOSPC" || code === "EMFILE"
    ? new SandboxError("resource_exhausted", "this host has no file watches left", { cause: error })
    : new SandboxError("internal", `the watch failed: ${messageOf(error)}`, { cause: error });
}
