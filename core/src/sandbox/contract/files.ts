/** Type of a path, after following a final link (`unknown`: a dangling link, device, socket or pipe). */
export type FileKind = "file" | "directory" | "unknown";

/** One entry of a sandbox's file system. All but `kind` and `mode` describe the entry itself, as lstat does. */
export interface FileInfo {
  /** Last component of `path`. */
  readonly name: string;
  /** Absolute path inside the sandbox, as it was requested. */
  readonly path: string;
  /** Of the target, for a symbolic link. */
  readonly kind: FileKind;
  readonly sizeBytes: number;
  /** The low nine permission bits of the target (0 when it dangles). */
  readonly mode: number;
  /** All mode bits of the entry itself, file type included, as `st_mode` has them. */
  readonly rawMode: number;
  readonly uid: number;
  readonly gid: number;
  /** Names from the sandbox's own passwd and group, or the number as text. */
  readonly owner: string;
  readonly group: string;
  /** Milliseconds since the Unix epoch, with a fraction where the file system keeps one. */
  readonly modifiedAtMs: number;
  /** For a symbolic link: its fully resolved target, or its own path when that cannot be resolved. */
  readonly symlinkTarget?: string | undefined;
  /** Extended attributes `user.e2b.*` without that prefix. */
  readonly metadata: Readonly<Record<string, string>>;
}

export interface ReadOptions {
  /** First byte, 0 when absent. */
  readonly offset?: number | undefined;
  /** At most this many bytes; to the end when absent. */
  readonly length?: number | undefined;
}

export interface WriteOptions {
  /** Owner of created entries, missing parents included; the default user when absent. */
  readonly user?: string | undefined;
  /** Permission bits of a newly created file; 0o644 when absent. */
  readonly mode?: number | undefined;
  /** Replaces all metadata; `{}` clears it. Dropped silently where the file system has no extended attributes. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
}

/** Attributes of a file to change; absent = unchanged. */
export interface FileChange {
  /** The low twelve bits. */
  readonly mode?: number | undefined;
  readonly owner?: { readonly uid: number; readonly gid: number } | undefined;
}

/** An open file. Its info is of the same file that `content` reads. */
export interface OpenFile extends AsyncDisposable {
  readonly info: FileInfo;
  /** Bytes from `offset`, read on demand. Iterate once. */
  content(options?: ReadOptions): AsyncIterable<Uint8Array>;
  /**
   * The file as this process can read it itself, by a descriptor that was opened inside; undefined where there is none.
   * Absent where the backend never has one. Usable until the file is disposed or the sandbox ends.
   */
  direct?(): Promise<PositionalReads | undefined>;
}

export interface PositionalReads {
  /** Reads into memory that must not change meanwhile. @returns count of bytes; 0 at the end of the file. */
  read(target: Uint8Array, position: number): Promise<number>;
}

export type WatchEventType = "create" | "write" | "remove" | "rename" | "chmod";

export interface WatchEvent {
  /** Path relative to the watched directory. */
  readonly name: string;
  readonly type: WatchEventType;
}

/** A directory watch. Iterate once; leaving the loop or aborting the signal ends it. */
export interface WatchOptions {
  readonly recursive: boolean;
  /**
   * Allows directories on NFS, SMB or FUSE, where changes from elsewhere are not seen; by default refused with
   * `networkMountError`. The file system of the sandbox's root is always allowed.
   */
  readonly allowNetworkMounts?: boolean | undefined;
  readonly signal: AbortSignal;
}

/**
 * File operations on absolute paths inside the sandbox. Links are resolved as in the sandbox and never reach outside.
 * Failures are SandboxErrors: not_found, already_exists, invalid_argument (not a directory, is a directory),
 * permission_denied, resource_exhausted (with a `shortage`), failed_precondition (link loop).
 */
export interface Files {
  stat(path: string): Promise<FileInfo>;
  /**
   * Entries below a directory, depth first, names in byte order, parents before children. The root itself may be a
   * link; links below it are not followed. @param depth number of path components below it, 1 or more.
   */
  list(path: string, depth: number): AsyncIterable<FileInfo>;
  read(path: string): Promise<OpenFile>;
  /**
   * Writes a regular file and its missing parents (0755, owned by the user). The file appears, or changes, only after
   * `data` ended well: when the source throws, the old file stays.
   */
  write(path: string, data: AsyncIterable<Uint8Array>, options?: WriteOptions): Promise<FileInfo>;
  /** As `write`, of content that is in memory. Absent where the backend has no shorter way for it. */
  writeWhole?(path: string, content: Uint8Array, options?: WriteOptions): Promise<FileInfo>;
  /** Makes a directory and its missing parents, 0755. @throws already_exists, invalid_argument (exists, no directory). */
  makeDir(path: string, options?: Pick<WriteOptions, "user">): Promise<FileInfo>;
  /** rename(2): replaces a file at the destination; makes the destination's missing parents. */
  move(source: string, destination: string, options?: Pick<WriteOptions, "user">): Promise<FileInfo>;
  /** Changes mode or owner of the target of a final link. Absent where the backend cannot. */
  change?(path: string, change: FileChange): Promise<FileInfo>;
  /** Removes a file or a tree, never following links. A missing path is fine. */
  remove(path: string): Promise<void>;
  /**
   * Absent where the backend cannot watch by itself.
   * @throws invalid_argument (no directory, a network file system that is not allowed), resource_exhausted.
   */
  watch?(path: string, options: WatchOptions): Promise<AsyncIterable<WatchEvent>>;
  /**
   * Host path of a directory inside the sandbox, for host-side watchers. Only backends without `watch` and without
   * isolation, whose sandboxes are trusted with the host, may have it.
   */
  hostPath?(path: string): Promise<string>;
}
