import { randomBytes } from "node:crypto";
import type { Stats } from "node:fs";
import { lstat, statfs } from "node:fs/promises";
import { join, posix } from "node:path";
import { type Clock, type LiveSandbox, SandboxError, messageOf } from "@coppice/core";
import type { FileInfo, WatchEvent } from "@coppice/core/backend";
import { type FSWatcher, watch } from "chokidar";
import { Departures } from "./departures.js";
import { EventBuffer } from "./event-buffer.js";
import { type EntryState, ObservedEntries, stateOf } from "./observed-entries.js";

export interface WatchersOptions {
  readonly clock: Clock;
  readonly maxWatchersPerSandbox: number;
  readonly maxWatchedEntries: number;
  readonly maxBufferedEvents: number;
}

export interface WatchRequest {
  /** Absolute, inside the sandbox. */
  readonly path: string;
  readonly recursive: boolean;
  /** Watch NFS, SMB and FUSE too, where changes made elsewhere are not seen. */
  readonly allowNetworkMounts: boolean;
}

/** A directory watch with one reader. */
export interface DirectoryWatch extends AsyncDisposable {
  /** The watched directory: names of events are relative to it. */
  readonly path: string;
  /** The events since the last call. @throws SandboxError when the watch cannot go on; nothing is lost silently. */
  take(): readonly WatchEvent[];
  /** Resolves when there is something to take, after `timeoutMs`, or when the signal aborts. */
  wait(timeoutMs: number, signal: AbortSignal): Promise<void>;
}

/** What the file service did, or is about to do: to `path`, which for a move was `source` before. */
export interface Change {
  readonly path: string;
  readonly source?: string | undefined;
}

/**
 * The directory watches of all sandboxes.
 *
 * A backend that can watch does it. Where the tree is visible on the host, the server watches there.
 * Then these are exact: writes, moves and new directories that went through the file service, told by it
 * the moment they are done; entries that come, go, are moved, change size, time or permissions. These are not: what
 * happens to an entry between two looks is told once, one that is moved out of the watch is a REMOVE, and changes of
 * owner or extended attributes alone are not told.
 */
export class Watchers {
  readonly #options: WatchersOptions;
  readonly #sandboxes = new Map<LiveSandbox, SandboxWatches>();

  constructor(options: WatchersOptions) {
    this.#options = options;
  }

  /**
   * Starts a watch, which its reader has to dispose of; it fails when the sandbox ends.
   * @throws SandboxError not_found, invalid_argument (no directory, a network file system),
   * resource_exhausted (too many watches or entries), unimplemented (this backend cannot).
   */
  async open(sandbox: LiveSandbox, request: WatchRequest): Promise<DirectoryWatch> {
    return this.#watchesOf(sandbox).open(request);
  }

  /** Starts a watch that is read by id until it is removed or the sandbox ends. Throws as `open` does. */
  async create(sandbox: LiveSandbox, request: WatchRequest): Promise<string> {
    const watches = this.#watchesOf(sandbox);
    const directoryWatch = await watches.open(request);
    const id = `w${randomBytes(10).toString("hex")}`;
    watches.byId.set(id, directoryWatch);
    return id;
  }

  /** @throws SandboxError not_found */
  find(sandbox: LiveSandbox, id: string): DirectoryWatch {
    const found = this.#sandboxes.get(sandbox)?.byId.get(id);
    if (found === undefined) throw new SandboxError("not_found", `watcher with id ${id} not found`);
    return found;
  }

  /** @throws SandboxError not_found */
  async remove(sandbox: LiveSandbox, id: string): Promise<void> {
    const found = this.find(sandbox, id);
    this.#sandboxes.get(sandbox)?.byId.delete(id);
    await found[Symbol.asyncDispose]();
  }

  /** Lets the sandbox's watches know of a change by the file service, so that they report it once and at once. */
  async during(sandbox: LiveSandbox, change: Change, result: Promise<FileInfo>): Promise<FileInfo> {
    const hostWatches = this.#sandboxes.get(sandbox)?.hostWatches ?? [];
    const holds = [...hostWatches].map((hostWatch) => hostWatch.hold(change));
    let info: FileInfo | undefined;
    try {
      info = await result;
      return info;
    } finally {
      for (const release of holds) release(info);
    }
  }

  /** The file service removed a path. Whoever watches may not have seen yet that it was there, and never would. */
  removed(sandbox: LiveSandbox, path: string): void {
    for (const hostWatch of this.#sandboxes.get(sandbox)?.hostWatches ?? []) hostWatch.removed(path);
  }

  /** Ends every watch. */
  async close(): Promise<void> {
    await Promise.all([...this.#sandboxes.values()].map((watches) => watches.close()));
  }

  #watchesOf(sandbox: LiveSandbox): SandboxWatches {
    if (sandbox.ended.aborted) throw endOf(sandbox);
    const known = this.#sandboxes.get(sandbox);
    if (known !== undefined) return known;
    const watches = new SandboxWatches(sandbox, this.#options);
    this.#sandboxes.set(sandbox, watches);
    sandbox.ended.addEventListener(
      "abort",
      () => {
        this.#sandboxes.delete(sandbox);
        void watches.close();
      },
      { once: true },
    );
    return watches;
  }
}

function endOf(sandbox: LiveSandbox): SandboxError {
  return new SandboxError("unavailable", `the sandbox has ended: ${String(sandbox.ended.reason)}`);
}

/** The watches of one sandbox. */
class SandboxWatches {
  readonly byId = new Map<string, DirectoryWatch>();
  readonly hostWatches = new Set<HostWatch>();
  readonly #sandbox: LiveSandbox;
  readonly #options: WatchersOptions;
  readonly #closers = new Set<() => Promise<void>>();
  #count = 0;

  constructor(sandbox: LiveSandbox, options: WatchersOptions) {
    this.#sandbox = sandbox;
    this.#options = options;
  }

  async open(request: WatchRequest): Promise<DirectoryWatch> {
    const { clock, maxWatchersPerSandbox, maxBufferedEvents } = this.#options;
    if (this.#count >= maxWatchersPerSandbox) {
      throw new SandboxError("resource_exhausted", `a sandbox can have ${maxWatchersPerSandbox} watches`);
    }
    this.#count++;
    const buffer = new EventBuffer(maxBufferedEvents);
    let stop: () => Promise<void>;
    try {
      await this.#requireDirectory(request.path);
      stop = await this.#start(request, buffer);
    } catch (error) {
      this.#count--;
      throw error;
    }
    let closing: Promise<void> | undefined;
    const close = (): Promise<void> => {
      if (closing === undefined) {
        this.#count--;
        this.#closers.delete(close);
        buffer.fail(this.#sandbox.ended.aborted ? endOf(this.#sandbox) : closed());
        closing = stop();
      }
      return closing;
    };
    this.#closers.add(close);
    if (this.#sandbox.ended.aborted) {
      await close();
      throw endOf(this.#sandbox);
    }
    return {
      path: request.path,
      take: () => buffer.take(),
      wait: (timeoutMs, signal) => buffer.wait({ clock, timeoutMs, signal }),
      [Symbol.asyncDispose]: close,
    };
  }

  async close(): Promise<void> {
    this.byId.clear();
    await Promise.all([...this.#closers].map((close) => close()));
  }

  async #requireDirectory(path: string): Promise<void> {
    let info: FileInfo;
    try {
      info = await this.#sandbox.runtime.files.stat(path);
    } catch (error) {
      if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
      throw new SandboxError("not_found", `path ${path} not found: ${error.message}`);
    }
    if (info.kind !== "directory") {
      throw new SandboxError("invalid_argument", `path ${path} not a directory: it is a ${info.kind}`);
    }
  }

  async #start(request: WatchRequest, buffer: EventBuffer): Promise<() => Promise<void>> {
    const { files } = this.#sandbox.runtime;
    if (files.watch !== undefined) {
      const stopping = new AbortController();
      const { recursive, path } = request;
      const source = await files.watch(path, { recursive, signal: stopping.signal });
      const reading = forward(source, buffer);
      return async () => {
        stopping.abort();
        await reading;
      };
    }
    if (files.hostPath === undefined) {
      throw new SandboxError("unimplemented", "the backend of this sandbox cannot watch directories");
    }
    const hostPath = await files.hostPath(request.path);
    if (!request.allowNetworkMounts) await refuseNetworkMount(hostPath, request.path);
    const hostWatch = new HostWatch({
      hostPath,
      request,
      buffer,
      maxEntries: this.#options.maxWatchedEntries,
      clock: this.#options.clock,
    });
    await hostWatch.start();
    this.hostWatches.add(hostWatch);
    return async () => {
      this.hostWatches.delete(hostWatch);
      await hostWatch.close();
    };
  }
}

function closed(): SandboxError {
  return new SandboxError("canceled", "the watch was closed");
}

async function forward(source: AsyncIterable<WatchEvent>, buffer: EventBuffer): Promise<void> {
  try {
    for await (const event of source) buffer.push(event);
    buffer.fail(closed());
  } catch (error) {
    buffer.fail(
      error instanceof SandboxError
        ? error
        : new SandboxError("internal", "the watch broke off", { cause: error }),
    );
  }
}

// f_type of statfs(2): nfs, smb, cifs, smb2, fuse.
const NETWORK_TYPES: ReadonlySet<number> = new Set([0x6969, 0x517b, 0xff534d42, 0xfe534d42, 0x65735546]);

async function refuseNetworkMount(hostPath: string, path: string): Promise<void> {
  // Other systems number their file systems in another way.
  if (process.platform !== "linux") return;
  const { type } = await statfs(hostPath);
  // Where the field is signed, the types above 2^31 arrive negative.
  if (NETWORK_TYPES.has(type >>> 0)) {
    throw new SandboxError("invalid_argument", `cannot watch path on network filesystem: ${path}`);
  }
}

interface HostWatchOptions {
  readonly hostPath: string;
  readonly request: WatchRequest;
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

/** chokidar holds changes of one file together for 50 ms, and drops one of permissions alone. */
const SETTLE_MS = 100;
/** The two halves of a move, a few milliseconds apart on a machine that has time. */
const MOVE_MS = 150;
/** Names that the file service took away and that the host's news of may still be on its way. */
const MOST_DEPARTED = 1_000;

/** A watch on the host's side of a sandbox's directory. */
class HostWatch {
  readonly #options: HostWatchOptions;
  readonly #entries = new ObservedEntries();
  readonly #departures: Departures;
  readonly #held = new Set<Hold>();
  /** In the order in which they went. */
  readonly #departed = new Set<string>();
  /** What ends the wait for one more look, by name. */
  readonly #settling = new Map<string, () => void>();
  #watcher: FSWatcher | undefined;
  #isReady = false;

  constructor(options: HostWatchOptions) {
    this.#options = options;
    const { clock, buffer } = options;
    this.#departures = new Departures({ clock, moveMs: MOVE_MS, emit: (event) => buffer.push(event) });
  }

  /** Resolves when everything that is there is known: any change from now on is seen. */
  async start(): Promise<void> {
    const { hostPath, request } = this.#options;
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const watcher = watch(hostPath, {
      // The first scan is wanted: it is what later looks are compared with.
      ignoreInitial: false,
      alwaysStat: true,
      followSymlinks: false,
      ignorePermissionErrors: true,
      // By default a file that goes and comes back within 100 ms only changes.
      atomic: false,
      ...(request.recursive ? {} : { depth: 0 }),
    });
    this.#watcher = watcher;
    watcher.on("all", (event, path, stats) => {
      const error = this.#observe(event, path, stats);
      if (error === undefined) return;
      this.#options.buffer.fail(error);
      reject(error);
      void this.close();
    });
    watcher.on("error", (error) => {
      const failure = watchFailure(error);
      this.#options.buffer.fail(failure);
      reject(failure);
    });
    watcher.once("ready", () => {
      this.#isReady = true;
      resolve();
    });
    try {
      await promise;
    } catch (error) {
      await this.close();
      throw error;
    }
  }

  async close(): Promise<void> {
    for (const cancel of this.#settling.values()) cancel();
    this.#settling.clear();
    this.#departures.close();
    await this.#watcher?.close();
  }

  /**
   * Keeps back what the host sees of a change by the file service.
   * @returns to be called when the change is done, with what it made, or has failed.
   */
  hold(change: Change): (info: FileInfo | undefined) => void {
    const to = this.#nameOf(change.path);
    const from = change.source === undefined ? undefined : this.#nameOf(change.source);
    // What comes in from outside of the watch has entries below it that nobody here knows yet.
    const isWhole = from !== undefined;
    const holds = [to, from]
      .filter((name) => name !== undefined)
      .map((name): Hold => ({ name, isWhole, isStirred: false }));
    for (const hold of holds) this.#held.add(hold);
    return (info) => {
      for (const hold of holds) this.#held.delete(hold);
      if (info !== undefined && to !== undefined) this.#departed.delete(to);
      if (info === undefined) {
        for (const { name, isStirred } of holds) if (isStirred) void this.#lookAgain(name);
      } else if (change.source !== undefined) {
        if (from !== undefined) this.#depart(from);
        if (holds.length > 0) this.#report(this.#entries.moved(from, to, stateOf(info)));
      } else if (to !== undefined && info.kind === "directory") {
        this.#report(this.#entries.see(to, stateOf(info), false));
      } else if (to !== undefined) {
        this.#report(this.#entries.written(to, stateOf(info)));
      }
      // The file service does not tell an entry from another one of its name.
      if (info !== undefined && to !== undefined) void this.#lookAgain(to);
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

  /** Takes in one event of the host. Answers why the watch has to end, if it has. */
  #observe(event: string, path: string, stats: Stats | undefined): SandboxError | undefined {
    const { hostPath, maxEntries, request } = this.#options;
    const name = posix.relative(hostPath, path);
    if (name === "") {
      if (event === "unlinkDir") this.#report([{ name: ".", type: "remove" }]);
      return undefined;
    }
    if (this.#isHeld(name)) return undefined;
    if (event === "unlink" || event === "unlinkDir") this.#goes(name);
    else if (this.#hasDeparted(name)) void this.#lookAgain(name);
    else if (stats !== undefined) {
      if (this.#isReady) {
        this.#comes(name, stats);
        this.#settle(name);
      } else this.#entries.learn(name, seenState(stats));
    }
    return this.#entries.size > maxEntries
      ? new SandboxError(
          "resource_exhausted",
          `more than ${maxEntries} entries to watch below ${request.path}`,
        )
      : undefined;
  }

  /** The host says that an entry is gone; whether it was moved is open. */
  #goes(name: string): void {
    if (this.#departures.has(name)) return;
    const identity = this.#entries.identityOf(name);
    if (identity === undefined) this.#report(this.#entries.miss(name));
    else this.#departures.depart(name, identity, () => this.#entries.miss(name));
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
    this.#report(this.#entries.see(name, state, stats.isFile()));
  }

  /** One more look when chokidar has told what it holds together. */
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

  /** The name of a path in this watch, undefined when it is outside. */
  #nameOf(path: string): string | undefined {
    const name = posix.relative(posix.normalize(this.#options.request.path), posix.normalize(path));
    const isOutside = name === "" || name === ".." || name.startsWith("../");
    return isOutside || (!this.#options.request.recursive && name.includes("/")) ? undefined : name;
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
