import {
  type FileInfo,
  type Files,
  SandboxError,
  type WatchEvent,
  type WatchOptions,
  type WriteOptions,
} from "@coppice/core/backend";
import { type Failure, fileError, readFileInfo } from "../wire/answers.js";
import { type AgentFile, FileOpening } from "./agent-file.js";
import { AgentListing, LISTING_WINDOW_BYTES } from "./agent-listing.js";
import { AgentWatch, WATCH_WINDOW_BYTES, watchError } from "./agent-watch.js";
import {
  type Channel,
  type Link,
  PAYLOAD_LIMIT,
  type PayloadReader,
  PayloadWriter,
  Reply,
  Request,
  Stage,
} from "../wire/frames.js";
import { type Identity, writeIdentity } from "../wire/spawn-request.js";
import { StagedWrite } from "./staged-write.js";

/** Operations of a connection that files need. */
interface Requests {
  /** Opens a channel with a new id by a request. @throws SandboxError unavailable */
  open<C extends Channel>(type: number, payload: Uint8Array, create: (link: Link) => C): C;
  /** Sends a request with one answer of the expected type. @throws SandboxError unavailable */
  ask<T>(type: number, payload: Uint8Array, expected: Expected<T>): Promise<T>;
  /** As `ask`; the channel that `create` makes of the answer receives all later frames. */
  begin<T, C extends Channel>(
    type: number,
    payload: Uint8Array,
    expected: Expected<T>,
    create: (link: Link, answer: T) => C,
  ): Promise<C>;
}

export interface Expected<T> {
  readonly type: number;
  readonly read: (payload: PayloadReader) => T;
  readonly errorOf: (failure: Failure) => SandboxError;
}

export interface AgentFilesOptions {
  /** Default account of commands and owner of new files; the agent's own account when absent. */
  readonly defaultUser?: string | Identity | undefined;
  /** Account whose permissions apply to file operations; the agent's own, which is root, when absent. */
  readonly fileActor?: string | Identity | undefined;
  /** Bodies up to this size, and within one frame, are written in place at once. 131 072 when absent. */
  readonly writeInPlaceLimit?: number | undefined;
}

interface FileChange {
  readonly mode?: number | undefined;
  readonly owner?: string | Identity | undefined;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
}

const WRITE_IN_PLACE_LIMIT = 131_072;
/** Maximum of `writeInPlaceLimit`: the frame also holds the path and metadata. */
export const MOST_IN_PLACE_BYTES = 245_760;
const NEW_FILE_MODE = 0o644;
const MAX_PATH_BYTES = 4_095;
const HAS_METADATA = 1;
const IS_STAGED = 2;
const IS_RECURSIVE = 1;
const ALLOWS_NETWORK_MOUNTS = 2;

export class AgentFiles implements Files {
  readonly #requests: Requests;
  readonly #options: AgentFilesOptions;

  constructor(requests: Requests, options: AgentFilesOptions = {}) {
    this.#requests = requests;
    this.#options = options;
  }

  async stat(path: string): Promise<FileInfo> {
    return this.#requests.ask(Request.Stat, this.#payload(path).finish(), infoOf(path));
  }

  async *list(path: string, depth: number): AsyncIterable<FileInfo> {
    const payload = this.#payload(path).u32(Math.min(depth, 0xffff_ffff)).u32(LISTING_WINDOW_BYTES);
    const listing = this.#requests.open(
      Request.List,
      payload.finish(),
      (link) => new AgentListing(link, path),
    );
    yield* listing.entries();
  }

  async read(path: string): Promise<AgentFile> {
    const payload = this.#payload(path).finish();
    const errorOf = (failure: Failure): SandboxError => openError(failure, path);
    const create = (link: Link): FileOpening => new FileOpening(link, path, errorOf);
    return this.#requests.open(Request.Open, payload, create).read();
  }

  async write(path: string, data: AsyncIterable<Uint8Array>, options: WriteOptions = {}): Promise<FileInfo> {
    requirePath(path);
    const { writeInPlaceLimit = WRITE_IN_PLACE_LIMIT } = this.#options;
    const held: Buffer[] = [];
    let heldBytes = 0;
    let staged: StagedWrite | undefined;
    try {
      for await (const chunk of data) {
        heldBytes += chunk.byteLength;
        if (staged === undefined && heldBytes <= writeInPlaceLimit) {
          // A copy: the owner of the chunk may reuse its memory.
          held.push(Buffer.from(chunk));
          continue;
        }
        if (staged === undefined) {
          staged = this.#stage(path, options);
          for (const each of held.splice(0)) await staged.write(each);
        }
        await staged.write(chunk);
      }
      const [only = Buffer.alloc(0)] = held;
      const body = held.length > 1 ? Buffer.concat(held) : only;
      if (staged === undefined) return await this.writeWhole(path, body, options);
      return await staged.commit();
    } catch (error) {
      staged?.abort();
      throw error;
    }
  }

  async writeWhole(path: string, content: Uint8Array, options: WriteOptions = {}): Promise<FileInfo> {
    const { writeInPlaceLimit = WRITE_IN_PLACE_LIMIT } = this.#options;
    if (content.byteLength <= writeInPlaceLimit) {
      const payload = this.#writeRequest(path, options, false).bytes(content);
      const errorOf = (failure: Failure): SandboxError => changeError(failure, "write", path, options);
      if (payload.byteLength <= PAYLOAD_LIMIT)
        return this.#requests.ask(Request.Write, payload.finish(), infoOf(path, errorOf));
    }
    const staged = this.#stage(path, options);
    try {
      await staged.write(content);
      return await staged.commit();
    } catch (error) {
      staged.abort();
      throw error;
    }
  }

  async makeDir(path: string, options: Pick<WriteOptions, "user"> = {}): Promise<FileInfo> {
    const payload = putPath(this.#identities(options), path).finish();
    const errorOf = (cause: Failure): SandboxError => {
      if (cause.code !== "EEXIST") return changeError(cause, "mkdir", path, options);
      return cause.detail === "directory"
        ? new SandboxError("path_exists", `directory already exists: ${path}`, { cause })
        : new SandboxError("path_is_file", `path already exists but it is not a directory: ${path}`, {
            cause,
          });
    };
    return this.#requests.ask(Request.MakeDirectory, payload, infoOf(path, errorOf));
  }

  async move(
    source: string,
    destination: string,
    options: Pick<WriteOptions, "user"> = {},
  ): Promise<FileInfo> {
    const payload = putPath(putPath(this.#identities(options), source), destination);
    const errorOf = (failure: Failure): SandboxError => changeError(failure, "rename", source, options);
    return this.#requests.ask(Request.Move, payload.finish(), infoOf(destination, errorOf));
  }

  async remove(path: string): Promise<void> {
    await this.#requests.ask(Request.Remove, this.#payload(path).finish(), {
      type: Reply.Done,
      read: () => undefined,
      errorOf: (failure) =>
        failure.code === "EBUSY" && /^\/+$/.test(path)
          ? new SandboxError("root_not_removable", "the root directory cannot be removed")
          : fileError(failure, "remove", path),
    });
  }

  /** Changes mode, owner or metadata; follows links. */
  async change(path: string, { mode, owner, metadata }: FileChange): Promise<FileInfo> {
    const payload = this.#payload(path);
    const flags =
      (mode === undefined ? 0 : 1) | (owner === undefined ? 0 : 2) | (metadata === undefined ? 0 : 4);
    payload.u8(flags).u16((mode ?? 0) & 0o7777);
    writeIdentity(payload, owner);
    putMetadata(payload, metadata ?? {});
    return this.#requests.ask(Request.Change, payload.finish(), infoOf(path));
  }

  async watch(
    path: string,
    { recursive, allowNetworkMounts = false, signal }: WatchOptions,
  ): Promise<AsyncIterable<WatchEvent>> {
    signal.throwIfAborted();
    const payload = this.#payload(path)
      .u8((recursive ? IS_RECURSIVE : 0) | (allowNetworkMounts ? ALLOWS_NETWORK_MOUNTS : 0))
      .u32(WATCH_WINDOW_BYTES);
    const started: Expected<void> = {
      type: Reply.Done,
      read: () => undefined,
      errorOf: (failure) => watchError(failure, path),
    };
    const create = (link: Link): AgentWatch => new AgentWatch(link, path);
    const watch = await this.#requests.begin(Request.Watch, payload.finish(), started, create);
    return watch.events(signal);
  }

  #payload(path: string): PayloadWriter {
    const payload = new PayloadWriter();
    writeIdentity(payload, this.#options.fileActor);
    return putPath(payload, path);
  }

  #identities({ user }: Pick<WriteOptions, "user">): PayloadWriter {
    const payload = new PayloadWriter();
    writeIdentity(payload, this.#options.fileActor);
    writeIdentity(payload, user ?? this.#options.defaultUser);
    return payload;
  }

  #writeRequest(path: string, options: WriteOptions, isStaged: boolean): PayloadWriter {
    const { mode = NEW_FILE_MODE, metadata } = options;
    const payload = putPath(this.#identities(options), path).u16(mode & 0o7777);
    payload.u8((metadata ? HAS_METADATA : 0) | (isStaged ? IS_STAGED : 0));
    putMetadata(payload, metadata ?? {});
    return payload;
  }

  #stage(path: string, options: WriteOptions): StagedWrite {
    const payload = this.#writeRequest(path, options, true).finish();
    const errorOf = (failure: Failure): SandboxError => changeError(failure, "write", path, options);
    return this.#requests.open(Request.Write, payload, (link) => new StagedWrite(link, path, errorOf));
  }
}

function requirePath(path: string): void {
  if (path.includes("\0")) throw new SandboxError("path_invalid", "a path cannot contain a NUL byte");
  if (!path.startsWith("/")) throw new SandboxError("path_invalid", `path is not absolute: ${path}`);
  if (Buffer.byteLength(path) > MAX_PATH_BYTES) throw new SandboxError("path_invalid", "file name too long");
}

function putPath(payload: PayloadWriter, path: string): PayloadWriter {
  requirePath(path);
  return payload.text(path);
}

const MAX_METADATA_ENTRIES = 128;
const MAX_METADATA_BYTES = 32_768;

function putMetadata(payload: PayloadWriter, metadata: Readonly<Record<string, string>>): void {
  const entries = Object.entries(metadata);
  let bytes = 0;
  for (const [name, value] of entries) {
    if (name.includes("\0"))
      throw new SandboxError("metadata_invalid", "a metadata key cannot contain a NUL byte");
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value);
  }
  if (entries.length > MAX_METADATA_ENTRIES || bytes > MAX_METADATA_BYTES)
    throw new SandboxError("metadata_invalid", "too much metadata");
  payload.u16(entries.length);
  for (const [name, value] of entries) payload.text(name).text(value);
}

function infoOf(
  path: string,
  errorOf = (failure: Failure): SandboxError => lookError(failure, path),
): Expected<FileInfo> {
  return { type: Reply.Info, read: (payload) => readFileInfo(payload, path), errorOf };
}

/** `a/b` below a file `a` counts as missing. */
function lookError(failure: Failure, path: string): SandboxError {
  const code = failure.code === "ENOTDIR" ? "ENOENT" : failure.code;
  return fileError({ ...failure, code }, "lstat", path);
}

function openError(failure: Failure, path: string): SandboxError {
  const options = { cause: failure };
  if (failure.code === "ENOENT" || failure.code === "ENOTDIR")
    return new SandboxError("path_not_found", `path '${path}' does not exist`, options);
  if (failure.code === "EISDIR")
    return new SandboxError("path_is_directory", `path '${path}' is a directory`, options);
  if (failure.code === "ENXIO")
    return new SandboxError("file_not_regular", `path '${path}' is not a regular file`, options);
  return fileError(failure, "open", path);
}

function changeError(
  failure: Failure,
  operation: string,
  path: string,
  { user }: Pick<WriteOptions, "user">,
): SandboxError {
  const options = { cause: failure };
  if (failure.stage === Stage.User)
    return new SandboxError("user_unknown", `invalid username: '${user ?? "default"}'`, options);
  if (failure.stage === Stage.Parent && failure.detail !== "" && failure.detail !== path)
    return new SandboxError("path_is_file", `path is a file: ${failure.detail}`, options);
  if (failure.code === "EISDIR")
    return new SandboxError("path_is_directory", `path is a directory: ${path}`, options);
  if (failure.code === "ENXIO")
    return new SandboxError("file_not_regular", `path '${path}' is not a regular file`, options);
  return fileError(failure, operation, path);
}
