import { opendir } from "node:fs/promises";
import { basename, join } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { type FSWatcher, watch } from "chokidar";
import type { Clock } from "@coppice/core";
import { KernelQueue } from "./kernel-queue.js";

export interface HostTreeOptions {
  /** Of the directory to watch. */
  readonly path: string;
  readonly events: HostTreeEvents;
  readonly clock: Clock;
  /** Whether the host says to which entry of a directory something has happened; as this host does when absent. */
  readonly namesEntries?: boolean | undefined;
}

/** What the host tells. Names are relative to the watched directory, which itself is `.`. */
export interface HostTreeEvents {
  /** An entry of this name has come or gone. */
  renamed(name: string): void;
  /** Something else has happened to an entry; what, only a look at it can tell. */
  changed(name: string): void;
  /**
   * An entry is there, in a directory that was looked through.
   * @param unseenSinceMs when that had been done before, in milliseconds since the epoch; 0 for the first time.
   */
  found(name: string, unseenSinceMs: number): void;
  /** An entry of a directory, nobody knows which, has come or gone. */
  stirred(directory: string): void;
  /** Not everything is watched any more. */
  failed(error: unknown): void;
  /** The host may not have told everything. */
  overflowed(): void;
}

/** A directory that is watched, or that is being looked through for the first time. */
interface Watched {
  readonly watcher: FSWatcher;
  /** Ends the wait for the first look through it. */
  readonly stopWaiting: () => void;
  /** When it was looked through last. */
  lookedThroughMs: number;
}

/** inotify does; kqueue tells of the directory alone. */
const NAMES_ENTRIES = process.platform === "linux";
/** Watchers closed before other work gets its turn: about 1 ms. */
const CLOSED_PER_TURN = 32;
/** Of one process all watches share it. */
const kernelQueue = new KernelQueue();

/**
 * Watches directories of a tree on the host with a watcher for each. chokidar says that something has happened to an
 * entry; what, and what is there, it is not asked: it holds its looks at entries back, and looks at all of a directory at
 * once, which holds everybody else up.
 */
export class HostTree {
  /** Whether the host says to which entry of a directory something has happened. */
  readonly namesEntries: boolean;
  readonly #options: HostTreeOptions;
  readonly #watched = new Map<string, Watched>();
  /** Directories to be watched. */
  readonly #waiting = new Set<string>();
  readonly #stopCounting: () => void;
  #work: Promise<void> | undefined;
  #closing: Promise<unknown> = Promise.resolve();
  #isClosed = false;

  constructor(options: HostTreeOptions) {
    this.#options = options;
    this.namesEntries = options.namesEntries ?? NAMES_ENTRIES;
    this.#stopCounting = kernelQueue.onOverflow(() => options.events.overflowed());
  }

  /** Whether all directories that were to be watched are. */
  get isAtRest(): boolean {
    return this.#work === undefined;
  }

  /** Resolves when what is in all directories that were to be watched has been told: what changes from now on is, too. */
  async rest(): Promise<void> {
    await this.#work;
  }

  /** Watches a directory, and tells what is in it. */
  watch(directory: string): void {
    if (this.#isClosed || this.#watched.has(directory)) return;
    this.#waiting.add(directory);
    this.#work ??= this.#watchAll();
  }

  /** Watches neither a directory nor those below it any more. */
  forget(directory: string): void {
    const isBelow = (name: string): boolean => name === directory || name.startsWith(`${directory}/`);
    for (const name of this.#waiting) if (isBelow(name)) this.#waiting.delete(name);
    const closed = this.#close([...this.#watched.keys()].filter(isBelow));
    this.#closing = Promise.all([this.#closing, closed]);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#stopCounting();
    await this.#close([...this.#watched.keys()]);
  }

  async #watchAll(): Promise<void> {
    for (const name of this.#waiting) {
      if (this.#isClosed) break;
      this.#waiting.delete(name);
      // A watcher of this path that is still open has another directory, and would be shared.
      await this.#closing;
      await this.#watch(name);
    }
    this.#work = undefined;
  }

  /** Resolves when the directory has been looked through. */
  async #watch(directory: string): Promise<void> {
    const root = join(this.#options.path, directory);
    const ready = Promise.withResolvers<void>();
    const watcher = watch(root, {
      depth: 0,
      ignoreInitial: true,
      // Everything that is in it. It may spell a path in its own way, so nothing but the length is sure.
      ignored: (path) => path.length > root.length,
      followSymlinks: false,
      ignorePermissionErrors: true,
      atomic: false,
    });
    this.#watched.set(directory, { watcher, stopWaiting: ready.resolve, lookedThroughMs: 0 });
    watcher.on("raw", (event, name, source) => {
      if (isOf(root, source)) this.#tell(directory, event, name);
    });
    watcher.on("error", (error) => {
      this.#options.events.failed(error);
      ready.resolve();
    });
    watcher.once("ready", ready.resolve);
    await ready.promise;
    await this.#lookThrough(directory);
  }

  #tell(directory: string, event: string, name: string | null): void {
    const { events, path } = this.#options;
    if (!this.namesEntries || name === null || name === "") {
      events.stirred(directory);
      void this.#lookThrough(directory);
      return;
    }
    kernelQueue.count();
    const isOwn = name === basename(join(path, directory));
    // inotify tells of the directory itself by its own name.
    if (isOwn) events.found(directory, 0);
    if (event === "rename" && !isOwn) events.renamed(join(directory, name));
    else events.changed(join(directory, name));
  }

  async #lookThrough(directory: string): Promise<void> {
    const { events, path, clock } = this.#options;
    const watched = this.#watched.get(directory);
    if (watched === undefined) return;
    const unseenSinceMs = watched.lookedThroughMs;
    watched.lookedThroughMs = clock.now();
    try {
      for await (const { name } of await opendir(join(path, directory))) {
        if (this.#isClosed) return;
        events.found(join(directory, name), unseenSinceMs);
      }
    } catch {
      // It has gone, is none any more, or is not for everybody to read.
      events.found(directory, 0);
    }
  }

  async #close(directories: readonly string[]): Promise<void> {
    const closing = directories.map((name) => this.#watched.get(name)).filter((one) => one !== undefined);
    for (const name of directories) this.#watched.delete(name);
    for (const [index, { watcher, stopWaiting }] of closing.entries()) {
      stopWaiting();
      await watcher.close();
      if (index % CLOSED_PER_TURN === CLOSED_PER_TURN - 1) await nextTurn();
    }
  }
}

/** Whether news is of a directory: when that has gone, chokidar watches the one above it. */
function isOf(root: string, source: unknown): boolean {
  return (
    typeof source === "object" && source !== null && "watchedPath" in source && source.watchedPath === root
  );
}
