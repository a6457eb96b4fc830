import type { Stats } from "node:fs";
import { join, posix } from "node:path";
import { setImmediate as nextTurn } from "node:timers/promises";
import { type FSWatcher, watch } from "chokidar";

export interface HostTreeOptions {
  /** Of the directory to watch. */
  readonly path: string;
  /** Watch the directories below it, too. */
  readonly recursive: boolean;
  readonly events: HostTreeEvents;
}

/** What the host tells. Names are relative to the watched directory, which itself is `.`. */
export interface HostTreeEvents {
  /** An entry is there, or is there still. */
  seen(name: string, stats: Stats): void;
  gone(name: string): void;
  /** Something has happened to an entry; what, only a look at it can tell. */
  stirred(name: string): void;
  /** Not everything is watched any more. */
  failed(error: unknown): void;
}

/** A directory that is watched, or that is being looked through for the first time. */
interface Watched {
  readonly watcher: FSWatcher;
  /** Ends the wait for the first look through it. */
  readonly stopWaiting: () => void;
}

/** Watchers closed before other work gets its turn: about 1 ms. */
const CLOSED_PER_TURN = 32;

/**
 * Watches a tree of the host with a watcher for each directory, which are looked through one after the other: chokidar
 * looks through all directories of a tree at once, and holds everybody else up for as long as that takes.
 */
export class HostTree {
  readonly #options: HostTreeOptions;
  readonly #watched = new Map<string, Watched>();
  /** Directories to be watched. */
  readonly #waiting = new Set<string>();
  #scan: Promise<void> | undefined;
  #isClosed = false;

  constructor(options: HostTreeOptions) {
    this.#options = options;
  }

  /** Resolves when all that is there has been seen, and is watched: any change from now on is told. */
  async start(): Promise<void> {
    this.#add(".");
    await this.#scan;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#close([...this.#watched.keys()]);
  }

  #add(name: string): void {
    if (this.#isClosed || this.#watched.has(name)) return;
    this.#waiting.add(name);
    this.#scan ??= this.#watchAll();
  }

  async #watchAll(): Promise<void> {
    for (const name of this.#waiting) {
      if (this.#isClosed) break;
      this.#waiting.delete(name);
      await this.#watch(name);
    }
    this.#scan = undefined;
  }

  /** Resolves when the directory has been looked through. */
  async #watch(directory: string): Promise<void> {
    const { path, recursive, events } = this.#options;
    const root = join(path, directory);
    const ready = Promise.withResolvers<void>();
    const watcher = watch(root, {
      depth: 0,
      // The first scan is wanted: it is what later looks are compared with.
      ignoreInitial: false,
      alwaysStat: true,
      followSymlinks: false,
      ignorePermissionErrors: true,
      // By default a file that goes and comes back within 100 ms only changes.
      atomic: false,
    });
    this.#watched.set(directory, { watcher, stopWaiting: ready.resolve });
    let isThere = false;
    watcher.on("all", (event, seen, stats) => {
      const name = posix.relative(path, seen) || ".";
      isThere ||= name === directory;
      if (event === "unlink") events.gone(name);
      else if (event === "unlinkDir") this.#goes(name, directory);
      else if (stats !== undefined) {
        events.seen(name, stats);
        if (recursive && event === "addDir") this.#add(name);
      }
    });
    watcher.on("raw", (_event, name) => {
      if (name !== null && name !== "") events.stirred(posix.join(directory, name));
    });
    watcher.on("error", (error) => {
      events.failed(error);
      ready.resolve();
    });
    watcher.once("ready", ready.resolve);
    await ready.promise;
    // It may have gone while it waited for its turn.
    if (!isThere) await this.#close([directory]);
  }

  #goes(name: string, directory: string): void {
    const below = [...this.#watched.keys()].filter((known) => known === name || known.startsWith(`${name}/`));
    void this.#close(below);
    this.#waiting.delete(name);
    this.#options.events.gone(name);
    // Its parent may have told already of what has taken its place.
    if (name === directory && name !== ".") this.#add(name);
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
