import { randomBytes } from "node:crypto";
import { stat, statfs } from "node:fs/promises";
import { type Clock, createToken, type LiveSandbox, MemoryRoom, SandboxError } from "@coppice/core";
import { type WatchEvent, networkMountError } from "@coppice/core/backend";
import type { FilesConfig } from "../files-config.js";
import { EventBuffer } from "./event-buffer.js";
import { startHostWatch } from "./host-watch.js";
import { REASONS } from "../reasons.js";

// f_type of statfs(2), in the order of <linux/magic.h>: CIFS, FUSE, NFS, SMB, SMB 2.
const NETWORK_TYPES: ReadonlySet<number> = new Set([0xff534d42, 0x65735546, 0x6969, 0x517b, 0xfe534d42]);

interface WatchersOptions extends Pick<
  FilesConfig,
  "maxWatchersPerSandbox" | "maxWatchedEntries" | "maxBufferedEvents" | "maxHeldEvents"
> {
  readonly clock: Clock;
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

/** Watches directories of sandboxes, within the limits of this plugin. */
export interface DirectoryWatches {
  /**
   * Starts a watch, which its reader has to dispose of; it fails when the sandbox ends.
   * @throws SandboxError not_found, invalid_argument (no directory, a network file system), resource_exhausted,
   * unimplemented (this backend cannot).
   */
  open(sandbox: LiveSandbox, request: WatchRequest): Promise<DirectoryWatch>;
}

export const DirectoryWatches = createToken<DirectoryWatches>("directory-watches");

interface SandboxWatches {
  readonly byId: Map<string, DirectoryWatch>;
  /** Of open watches. */
  readonly closers: Set<() => Promise<void>>;
  /** Number of watches that are open or being opened. */
  count: number;
}

/**
 * The directory watches of all sandboxes. A backend that can watch does it. Elsewhere the server watches the tree
 * where it is on the host: see `startHostWatch`.
 */
export class Watchers implements DirectoryWatches {
  readonly #options: WatchersOptions;
  readonly #sandboxes = new Map<LiveSandbox, SandboxWatches>();
  readonly #room: MemoryRoom;

  constructor(options: WatchersOptions) {
    this.#options = options;
    this.#room = new MemoryRoom(options.maxHeldEvents);
  }

  async open(sandbox: LiveSandbox, request: WatchRequest): Promise<DirectoryWatch> {
    const { clock, maxWatchersPerSandbox, maxBufferedEvents } = this.#options;
    const watches = this.#watchesOf(sandbox);
    if (watches.count >= maxWatchersPerSandbox)
      throw new SandboxError("watch_limit_reached", `a sandbox can have ${maxWatchersPerSandbox} watches`);
    watches.count++;
    const { id, owner: tenant } = sandbox.record;
    const held = this.#room.open({ tenant, sandbox: id, giveUp: () => buffer.drop() });
    const buffer: EventBuffer = new EventBuffer(maxBufferedEvents, held);
    let stop: () => Promise<void>;
    try {
      await requireDirectory(sandbox, request.path);
      stop = await this.#start(sandbox, request, buffer);
    } catch (error) {
      watches.count--;
      throw error;
    }
    let closing: Promise<void> | undefined;
    const close = (): Promise<void> => {
      if (closing === undefined) {
        watches.count--;
        watches.closers.delete(close);
        buffer.fail(sandbox.ended.aborted ? endOf(sandbox) : closed());
        held.empty();
        closing = stop();
      }
      return closing;
    };
    watches.closers.add(close);
    if (sandbox.ended.aborted) {
      await close();
      throw endOf(sandbox);
    }
    return {
      path: request.path,
      take: () => buffer.take(),
      wait: (timeoutMs, signal) => buffer.wait({ clock, timeoutMs, signal }),
      [Symbol.asyncDispose]: close,
    };
  }

  /** Starts a watch that is read by id until it is removed or the sandbox ends. Throws as `open` does. */
  async create(sandbox: LiveSandbox, request: WatchRequest): Promise<string> {
    const directoryWatch = await this.open(sandbox, request);
    const id = `w${randomBytes(10).toString("hex")}`;
    this.#watchesOf(sandbox).byId.set(id, directoryWatch);
    return id;
  }

  /** @throws SandboxError not_found */
  find(sandbox: LiveSandbox, id: string): DirectoryWatch {
    const found = this.#sandboxes.get(sandbox)?.byId.get(id);
    if (found === undefined)
      throw new SandboxError(REASONS.watcher_not_found, `watcher with id ${id} not found`);
    return found;
  }

  /** @throws SandboxError not_found */
  async remove(sandbox: LiveSandbox, id: string): Promise<void> {
    const found = this.find(sandbox, id);
    this.#sandboxes.get(sandbox)?.byId.delete(id);
    await found[Symbol.asyncDispose]();
  }

  /** Ends every watch. */
  async close(): Promise<void> {
    await Promise.all([...this.#sandboxes.values()].map(closeAll));
  }

  #watchesOf(sandbox: LiveSandbox): SandboxWatches {
    if (sandbox.ended.aborted) throw endOf(sandbox);
    const known = this.#sandboxes.get(sandbox);
    if (known !== undefined) return known;
    const watches: SandboxWatches = { byId: new Map(), closers: new Set(), count: 0 };
    this.#sandboxes.set(sandbox, watches);
    sandbox.ended.addEventListener(
      "abort",
      () => {
        this.#sandboxes.delete(sandbox);
        void closeAll(watches);
      },
      { once: true },
    );
    return watches;
  }

  async #start(
    { runtime: { files } }: LiveSandbox,
    { path, recursive, allowNetworkMounts }: WatchRequest,
    buffer: EventBuffer,
  ): Promise<() => Promise<void>> {
    if (files.watch !== undefined) {
      const stopping = new AbortController();
      const { signal } = stopping;
      const source = await files.watch(path, { recursive, allowNetworkMounts, signal });
      const reading = forward(source, buffer);
      return async () => {
        stopping.abort();
        await reading;
      };
    }
    if (files.hostPath === undefined)
      throw new SandboxError(
        REASONS.watching_unsupported,
        "the backend of this sandbox cannot watch directories",
      );
    const hostPath = await files.hostPath(path);
    if (!allowNetworkMounts && (await isNetworkMount(hostPath, await files.hostPath("/"))))
      throw networkMountError(path);
    return startHostWatch({ path, hostPath, recursive, buffer, maxEntries: this.#options.maxWatchedEntries });
  }
}

async function closeAll({ byId, closers }: SandboxWatches): Promise<void> {
  byId.clear();
  await Promise.all([...closers].map((close) => close()));
}

async function requireDirectory({ runtime }: LiveSandbox, path: string): Promise<void> {
  const { kind } = await runtime.files.stat(path).catch((error: unknown) => {
    if (!(error instanceof SandboxError) || error.code !== "not_found") throw error;
    throw new SandboxError("path_not_found", `path ${path} not found: ${error.message}`);
  });
  if (kind !== "directory")
    throw new SandboxError("path_is_file", `path ${path} not a directory: it is a ${kind}`);
}

function endOf(sandbox: LiveSandbox): SandboxError {
  return new SandboxError("sandbox_ended", `the sandbox has ended: ${String(sandbox.ended.reason)}`);
}

function closed(): SandboxError {
  return new SandboxError(REASONS.watch_closed, "the watch was closed");
}

async function forward(source: AsyncIterable<WatchEvent>, buffer: EventBuffer): Promise<void> {
  try {
    for await (const event of source) buffer.push(event);
    buffer.fail(closed());
  } catch (error) {
    buffer.fail(
      error instanceof SandboxError
        ? error
        : new SandboxError(REASONS.watch_failed, "the watch broke off", { cause: error }),
    );
  }
}

/**
 * True when a directory of this host is on NFS, SMB or FUSE, but not on the file system of `root`, the root of its
 * sandbox, which the sandbox alone changes. False on systems other than Linux: their file systems have other numbers.
 */
async function isNetworkMount(directory: string, root: string): Promise<boolean> {
  if (process.platform !== "linux") return false;
  const { type } = await statfs(directory);
  // Where the field is signed, the types above 2^31 arrive negative.
  if (!NETWORK_TYPES.has(type >>> 0)) return false;
  const [there, above] = await Promise.all([stat(directory), stat(root)]);
  return there.dev !== above.dev;
}
