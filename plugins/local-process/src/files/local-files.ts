import { randomUUID } from "node:crypto";
import {
  closeSync,
  constants,
  fchmodSync,
  fstatSync,
  ftruncateSync,
  openSync,
  readSync,
  renameSync,
  unlinkSync,
  writeSync,
} from "node:fs";
import { type FileHandle, open, readdir, rename, statfs, unlink } from "node:fs/promises";
import { join, posix } from "node:path";
import { pipeline } from "node:stream/promises";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { AgentFiles } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import {
  type FileInfo,
  type Files,
  type OpenFile,
  type ReadOptions,
  type WatchEvent,
  type WatchOptions,
  type WriteOptions,
  fileSystemError,
} from "@coppice/core/backend";
import { AgentReads, type Lead, TreeAgent } from "./tree-agent.js";
import { describeEntry } from "./describe-entry.js";
import {
  fileError,
  CAN_HOLD,
  type Held,
  type Place,
  type ResolveOptions,
  type Tree,
  WalkError,
  codeOf,
  holdIfPresent,
  isLargeFile,
  makeDirectory,
  openHeld,
  openHeldSync,
} from "./walk.js";
import { removeTree } from "./remove-tree.js";

const CHUNK_BYTES = 131_072;
/** Bytes of a large upload that wait while others are written. */
const WRITE_AHEAD_BYTES = 2 ** 20;
const NEW_FILE_MODE = 0o644;
/** Entries listed before other work gets its turn, which takes about 3 ms. */
const ENTRIES_PER_TURN = 128;

interface LocalFilesOptions {
  readonly tree: Tree;
  readonly root: string;
  /** Host path of a directory on the same file system, invisible in the sandbox. */
  readonly stage: string;
  readonly writeInPlaceLimit: number;
  /** The agent program, which watches directories; undefined without watches. */
  readonly agentBinary: string | undefined;
}

/**
 * Files of a sandbox whose tree is a directory of this host.
 *
 * While the agent watches one of its directories, the agent also makes the changes, so that events arrive in order and
 * before the answer. Where this process cannot hold entries, the agent does all, if there is one.
 */
export class LocalFiles implements Files {
  readonly watch?: NonNullable<Files["watch"]>;
  readonly #options: LocalFilesOptions;
  readonly #agent: TreeAgent | undefined;
  readonly #reads: AgentReads | undefined;
  readonly #closing = new AbortController();
  #isClosed = false;
  #changes = 0;

  constructor(options: LocalFilesOptions) {
    this.#options = options;
    const { agentBinary: binary, root, writeInPlaceLimit } = options;
    if (binary === undefined) return;
    const agent = new TreeAgent({ binary, root, writeInPlaceLimit });
    this.#agent = agent;
    const lead: Lead = (path, following) => {
      using place = this.#find(path, following);
      return place.resolved;
    };
    if (!CAN_HOLD) this.#reads = new AgentReads(agent, lead);
    this.watch = (path, watching) => this.#watch(agent, path, watching);
  }

  /** Number of changes that were made or tried; a running one counts at its end. */
  get changes(): number {
    return this.#changes;
  }

  /** Fails all later operations, and ends all watches. */
  async close(): Promise<void> {
    if (!this.#isClosed) this.#options.tree[Symbol.dispose]();
    this.#isClosed = true;
    this.#closing.abort();
    await this.#agent?.close();
  }

  async stat(path: string): Promise<FileInfo> {
    return this.#describe(path);
  }

  async *list(path: string, depth: number): AsyncIterable<FileInfo> {
    const turn = { entries: 0 };
    try {
      if (this.#reads !== undefined) {
        yield* this.#reads.list(path, depth);
        return;
      }
      using place = this.#find(path, { follow: true });
      if (!place.entry.stats.isDirectory())
        throw new SandboxError("path_is_file", `path is not a directory: ${path}`);
      yield* this.#entries(place.entry, { path, depth, turn });
    } catch (error) {
      throw fileError(error, "lstat", path);
    }
  }

  async read(path: string): Promise<OpenFile> {
    let handle: FileHandle | undefined;
    try {
      if (this.#reads !== undefined) return await this.#reads.read(path);
      using place = this.#find(path, { follow: true, missing: `path '${path}' does not exist` });
      requireRegular(place.entry, `path '${path}'`);
      handle = await openHeld(place.entry, constants.O_RDONLY);
      return openFile(handle, describeEntry(this.#options.tree, place.entry, path), path);
    } catch (error) {
      await handle?.close();
      throw fileError(error, "open", path);
    }
  }

  async write(path: string, data: AsyncIterable<Uint8Array>, options: WriteOptions = {}): Promise<FileInfo> {
    try {
      // A directory or a special file is refused before the body is read, if possible.
      this.#requireWritable(path);
      const { mode } = options;
      if (await this.#changed(path, (agent, to) => agent.write(to, data, { mode })))
        return await this.#describe(path);
      const staged = await this.#receive(data);
      if (staged.file === undefined) {
        await this.#shorten(path);
        this.#writeInPlace(path, staged.chunks, options);
      } else await this.#moveIn(path, staged.file, options);
      return await this.#describe(path);
    } catch (error) {
      throw await this.#changeError(error, "write", path);
    } finally {
      this.#changes++;
    }
  }

  async makeDir(path: string): Promise<FileInfo> {
    try {
      if (await this.#changed(path, (agent, to) => agent.makeDir(to))) return await this.#describe(path);
      using place = this.#resolve(path, { follow: true, makeParents: true });
      if (place.entry?.stats.isDirectory())
        throw new SandboxError("path_exists", `directory already exists: ${path}`);
      if (place.entry !== undefined)
        throw new SandboxError("path_is_file", `path already exists but it is not a directory: ${path}`);
      makeDirectory(place.path);
    } catch (error) {
      throw await this.#changeError(error, "mkdir", path);
    } finally {
      this.#changes++;
    }
    return this.#describe(path);
  }

  async move(source: string, destination: string): Promise<FileInfo> {
    try {
      using from = this.#find(source, { follow: false });
      if (await this.#changed(destination, (agent, to) => agent.move(from.resolved, to), { follow: false }))
        return await this.#describe(destination);
      using to = this.#resolve(destination, { follow: false, makeParents: true });
      renameSync(from.path, to.path);
    } catch (error) {
      throw await this.#changeError(error, "rename", source);
    } finally {
      this.#changes++;
    }
    return this.#describe(destination);
  }

  async remove(path: string): Promise<void> {
    try {
      using place = this.#resolve(path, { follow: false });
      if (place.resolved === "/")
        throw new SandboxError("root_not_removable", "the root directory cannot be removed");
      if (await this.#changed(path, (agent, at) => agent.remove(at), { follow: false })) return;
      if (place.entry !== undefined) await removeTree(place.path, this.#options.stage);
    } catch (error) {
      if (isMissing(error)) return;
      throw fileError(error, "remove", path);
    } finally {
      this.#changes++;
    }
  }

  async hostPath(path: string): Promise<string> {
    try {
      using place = this.#find(path, { follow: true });
      if (!place.entry.stats.isDirectory())
        throw new SandboxError("path_is_file", `path ${path} not a directory`);
      return place.resolved === "/" ? this.#options.root : `${this.#options.root}${place.resolved}`;
    } catch (error) {
      throw fileError(error, "lstat", path);
    }
  }

  async #watch(agent: TreeAgent, path: string, options: WatchOptions): Promise<AsyncIterable<WatchEvent>> {
    const inside = this.#whereTo(path, { follow: true });
    const use = await agent.use();
    const end = (): void => void use[Symbol.asyncDispose]();
    try {
      const signal = AbortSignal.any([options.signal, this.#closing.signal]);
      const events = await use.files.watch(inside, { ...options, signal });
      signal.addEventListener("abort", end, { once: true });
      return endingWith(events, end);
    } catch (error) {
      end();
      throw error;
    }
  }

  /** Lets the agent make a change, if that is for it. @returns false otherwise, without a change. */
  async #changed(
    path: string,
    change: (agent: AgentFiles, inside: string) => Promise<unknown>,
    options = { follow: true },
  ): Promise<boolean> {
    await using use = await (this.#reads === undefined ? this.#agent?.join() : this.#agent?.use());
    if (use === undefined) return false;
    await change(use.files, this.#whereTo(path, options));
    return true;
  }

  /** Path inside without links, also of a missing file. The agent follows no link to a path of the host. */
  #whereTo(path: string, options: { readonly follow: boolean }): string {
    try {
      using place = this.#resolve(path, options);
      return place.resolved;
    } catch (error) {
      if (!(error instanceof WalkError) || error.code !== "ENOENT") throw error;
      return posix.join(this.#whereTo(posix.dirname(path), { follow: true }), posix.basename(path));
    }
  }

  #resolve(path: string, options: ResolveOptions): Place {
    if (this.#isClosed) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    return this.#options.tree.resolve(path, options);
  }

  /** Resolves an existing path. @throws SandboxError not_found with the message `missing`. */
  #find(path: string, options: { readonly follow: boolean; readonly missing?: string }): FoundPlace {
    const missing = (cause?: unknown): SandboxError =>
      new SandboxError("path_not_found", options.missing ?? `lstat ${path}: no such file or directory`, {
        cause,
      });
    let place: Place;
    try {
      place = this.#resolve(path, { follow: options.follow });
    } catch (error) {
      // `a/b` below a file `a` counts as missing.
      throw isMissing(error) ? missing(error) : error;
    }
    if (place.entry === undefined) {
      place[Symbol.dispose]();
      throw missing();
    }
    return place as FoundPlace;
  }

  async #describe(path: string): Promise<FileInfo> {
    try {
      if (this.#reads !== undefined) return await this.#reads.stat(path);
      using place = this.#find(path, { follow: false });
      return describeEntry(this.#options.tree, place.entry, path);
    } catch (error) {
      throw fileError(error, "lstat", path);
    }
  }

  /** As `fileError`, for changes that may have run out of space at the path. */
  async #changeError(error: unknown, operation: string, path: string): Promise<unknown> {
    const errno = codeOf(error);
    if ((errno === "ENOSPC" || errno === "EDQUOT") && (await this.#lacksInodes(path)))
      return fileSystemError({ errno, operation, path, lacksInodes: true, cause: error });
    return fileError(error, operation, path);
  }

  async #lacksInodes(path: string): Promise<boolean> {
    using place = this.#resolveIfPresent(path);
    if (place?.entry === undefined) return await this.#lacksInodes(posix.dirname(path));
    const { blocks, bavail, files, ffree } = await statfs(place.entry.path);
    // Some file systems count no inodes, or no blocks.
    return files > 0 && ffree === 0 && (bavail > 0 || blocks === 0);
  }

  async *#entries(
    directory: Held,
    options: { readonly path: string; readonly depth: number; readonly turn: { entries: number } },
  ): AsyncIterable<FileInfo> {
    const { path, depth, turn } = options;
    // latin1 preserves the bytes of names, and string order is byte order.
    const names = (await readdir(directory.path, { encoding: "latin1" })).sort();
    for (const name of names) {
      if (++turn.entries % ENTRIES_PER_TURN === 0) await nextTurn();
      const bytes = Buffer.from(name, "latin1");
      using held = holdIfPresent(Buffer.concat([Buffer.from(`${directory.path}/`), bytes]));
      if (held === undefined) continue;
      const entryPath = `${path === "/" ? "" : path.replace(/\/+$/, "")}/${bytes.toString()}`;
      yield describeEntry(this.#options.tree, held, entryPath);
      if (depth > 1 && held.stats.isDirectory())
        yield* this.#entries(held, { path: entryPath, depth: depth - 1, turn });
    }
  }

  #requireWritable(path: string): void {
    using place = this.#resolveIfPresent(path);
    if (place?.entry !== undefined) requireWritable(place.entry, path);
  }

  /** Undefined if a parent directory is missing. */
  #resolveIfPresent(path: string): Place | undefined {
    try {
      return this.#resolve(path, { follow: true });
    } catch (error) {
      if (error instanceof WalkError && error.code === "ENOENT") return undefined;
      throw error;
    }
  }

  /** Reads a whole body: small ones into memory, others into a file of the stage. */
  async #receive(
    data: AsyncIterable<Uint8Array>,
  ): Promise<{ chunks: Uint8Array[]; file: string | undefined }> {
    const copies = copiesOf(data);
    const chunks: Uint8Array[] = [];
    const file = join(this.#options.stage, randomUUID());
    try {
      for (let sizeBytes = 0; sizeBytes <= this.#options.writeInPlaceLimit;) {
        const next = await copies.next();
        if (next.done === true) return { chunks, file: undefined };
        sizeBytes += next.value.byteLength;
        chunks.push(next.value);
      }
      const staged = await open(file, "wx", 0o600);
      await pipeline(
        async function* () {
          yield* chunks;
          yield* copies;
        },
        staged.createWriteStream({ highWaterMark: WRITE_AHEAD_BYTES }),
      );
      return { chunks: [], file };
    } catch (error) {
      await unlink(file).catch(() => undefined);
      throw error;
    } finally {
      await copies.return(undefined);
    }
  }

  /** Truncates in another thread, which waits while the kernel frees the memory of a large file. */
  async #shorten(path: string): Promise<void> {
    using place = this.#resolveIfPresent(path);
    if (place?.entry === undefined || !isLargeFile(place.entry.stats)) return;
    await using file = await openHeld(place.entry, constants.O_WRONLY);
    await file.truncate();
  }

  /**
   * Writes a small file synchronously, so that concurrent writes do not mix, and a watcher sees one creation, one
   * change of mode and one write.
   */
  #writeInPlace(path: string, chunks: readonly Uint8Array[], options: WriteOptions): void {
    using place = this.#resolve(path, { follow: true, makeParents: true });
    let descriptor: number;
    if (place.entry !== undefined) {
      requireWritable(place.entry, path);
      descriptor = openForOverwriting(place.entry);
    } else {
      const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
      descriptor = openSync(place.path, flags, 0o600);
    }
    try {
      // Independent of the server's umask.
      if (place.entry === undefined) fchmodSync(descriptor, options.mode ?? NEW_FILE_MODE);
      const body = chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks);
      if (place.entry === undefined) writeAll(descriptor, body);
      else overwrite(descriptor, body);
    } catch (error) {
      if (place.entry === undefined) unlinkSync(place.path);
      throw error;
    } finally {
      closeSync(descriptor);
    }
  }

  async #moveIn(path: string, file: string, options: WriteOptions): Promise<void> {
    try {
      using place = this.#resolve(path, { follow: true, makeParents: true });
      if (place.entry !== undefined) requireWritable(place.entry, path);
      const mode =
        place.entry === undefined ? (options.mode ?? NEW_FILE_MODE) : place.entry.stats.mode & 0o7777;
      const descriptor = openSync(file, constants.O_RDONLY);
      fchmodSync(descriptor, mode);
      closeSync(descriptor);
      // A rename over an existing file is slow: ext4 begins to flush the new file to the disk.
      if (place.entry === undefined) renameSync(file, place.path);
      else await rename(file, place.path);
    } catch (error) {
      await unlink(file).catch(() => undefined);
      throw error;
    }
  }
}

async function* endingWith(events: AsyncIterable<WatchEvent>, end: () => void): AsyncGenerator<WatchEvent> {
  try {
    yield* events;
  } finally {
    end();
  }
}

/** The owner of a chunk may reuse its memory. */
async function* copiesOf(data: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array, undefined> {
  for await (const chunk of data) yield Uint8Array.from(chunk);
}

type FoundPlace = Place & { readonly entry: Held };

function isMissing(error: unknown): boolean {
  return error instanceof WalkError && (error.code === "ENOENT" || error.code === "ENOTDIR");
}

function openFile(handle: FileHandle, info: FileInfo, path: string): OpenFile {
  return {
    info,
    async *content({ offset = 0, length = Number.POSITIVE_INFINITY }: ReadOptions = {}) {
      const end = offset + length;
      const readAt = async (position: number): Promise<Buffer> => {
        const buffer = Buffer.allocUnsafeSlow(Math.min(CHUNK_BYTES, Math.max(end - position, 0)));
        if (buffer.byteLength === 0) return buffer;
        const { bytesRead } = await handle.read(buffer, 0, buffer.byteLength, position);
        return buffer.subarray(0, bytesRead);
      };
      let next: Promise<Buffer> | undefined;
      try {
        for (let position = offset; ;) {
          const chunk = await (next ?? readAt(position));
          if (chunk.byteLength === 0) return;
          position += chunk.byteLength;
          // Reads ahead. A short chunk may be the end, or come from a file of /proc.
          next = chunk.byteLength === CHUNK_BYTES ? readAt(position) : undefined;
          next?.catch(() => undefined);
          yield chunk;
        }
      } catch (error) {
        throw fileError(error, "read", path);
      }
    },
    direct: async () => ({
      read: async (target, position) => {
        const { bytesRead } = await handle
          .read(target, 0, target.byteLength, position)
          .catch((error: unknown) => {
            throw fileError(error, "read", path);
          });
        return bytesRead;
      },
    }),
    [Symbol.asyncDispose]: () => handle.close(),
  };
}

function openForOverwriting(entry: Held): number {
  try {
    return openHeldSync(entry, constants.O_RDWR);
  } catch {
    // A file that cannot be read is opened for writing alone. `overwrite` cannot restore its old content then.
    return openHeldSync(entry, constants.O_WRONLY);
  }
}

function writeAll(descriptor: number, body: Uint8Array): void {
  for (let written = 0; written < body.byteLength;)
    written += writeSync(descriptor, body, written, body.byteLength - written, written);
}

/** Replaces the content of a file. Restores the old one when there is no space. */
function overwrite(descriptor: number, body: Uint8Array): void {
  const { size } = fstatSync(descriptor);
  // Without growth it needs no space.
  const old = size < body.byteLength ? readIfReadable(descriptor, size) : undefined;
  try {
    writeAll(descriptor, body);
  } catch (error) {
    const errno = codeOf(error);
    if (old !== undefined && (errno === "ENOSPC" || errno === "EDQUOT")) {
      writeAll(descriptor, old);
      ftruncateSync(descriptor, size);
    }
    throw error;
  }
  if (size > body.byteLength) ftruncateSync(descriptor, body.byteLength);
}

/** The first bytes of a file; undefined if it was not opened for reading. */
function readIfReadable(descriptor: number, length: number): Buffer | undefined {
  const bytes = Buffer.allocUnsafe(length);
  try {
    return readSync(descriptor, bytes, 0, length, 0) === length ? bytes : undefined;
  } catch (error) {
    if (codeOf(error) === "EBADF") return undefined;
    throw error;
  }
}

function requireWritable(entry: Held, path: string): void {
  if (entry.stats.isDirectory()) throw new SandboxError("path_is_directory", `path is a directory: ${path}`);
  requireRegular(entry, `path '${path}'`);
}

function requireRegular(entry: Held, what: string): void {
  if (entry.stats.isDirectory()) throw new SandboxError("path_is_directory", `${what} is a directory`);
  if (!entry.stats.isFile()) throw new SandboxError("file_not_regular", `${what} is not a regular file`);
}
