import { posix } from "node:path";
import { type LiveSandbox, resolveSandboxPath, SandboxError } from "@coppice/core";
import type { ErrorCode, FileInfo, Files, OpenFile, Reason, User } from "@coppice/core/backend";
import type { FilesConfig } from "../files-config.js";
import { RealPaths } from "./real-paths.js";

// Linux's PATH_MAX and NAME_MAX, without the NUL. FreeBSD has the same NAME_MAX and a shorter PATH_MAX,
// which its backend reports.
const MAX_PATH_BYTES = 4095;
const MAX_NAME_BYTES = 255;

type Limits = Pick<FilesConfig, "maxListEntries" | "maxFilesPerUpload">;

/** The files of one sandbox, with paths resolved for one user. Errors carry envd's texts. */
export class UserFiles {
  readonly sandbox: LiveSandbox;
  readonly #user: User;
  readonly #limits: Limits;

  private constructor(sandbox: LiveSandbox, user: User, limits: Limits) {
    this.sandbox = sandbox;
    this.#user = user;
    this.#limits = limits;
  }

  /** @param username the sandbox's default user when absent. @throws SandboxError not_found for an unknown user. */
  static async of(sandbox: LiveSandbox, username: string | undefined, limits: Limits): Promise<UserFiles> {
    return new UserFiles(sandbox, await sandbox.runtime.user(username), limits);
  }

  /** The absolute form of a client's path. @throws SandboxError invalid_argument */
  resolve(path: string): string {
    const absolute = resolveSandboxPath(path, this.#user);
    const isTooLong =
      Buffer.byteLength(absolute) > MAX_PATH_BYTES ||
      absolute.split("/").some((name) => Buffer.byteLength(name) > MAX_NAME_BYTES);
    if (isTooLong) throw new SandboxError("path_invalid", "file name too long");
    return absolute;
  }

  async stat(path: string): Promise<FileInfo> {
    const absolute = this.resolve(path);
    return translateErrors(this.#files.stat(absolute), {
      not_found: explainedAs(
        "path_not_found",
        `file not found: lstat ${absolute}: no such file or directory`,
      ),
    });
  }

  async makeDir(path: string): Promise<FileInfo> {
    const absolute = this.resolve(path);
    return translateErrors(this.#files.makeDir(absolute, { user: this.#user.name }), {
      already_exists: explainedAs("path_exists", `directory already exists: ${absolute}`),
      invalid_argument: async () => {
        const file = await this.#fileAbove(absolute);
        return file === undefined
          ? new SandboxError("path_is_file", `path already exists but it is not a directory: ${absolute}`)
          : new SandboxError("file_operation_failed", `path is a file: ${file}`);
      },
    });
  }

  async move(source: string, destination: string): Promise<FileInfo> {
    const from = this.resolve(source);
    const to = this.resolve(destination);
    const failed = failureOf("error renaming");
    return translateErrors(this.#files.move(from, to, { user: this.#user.name }), {
      not_found: missingSource(from),
      already_exists: failed,
      invalid_argument: failed,
      failed_precondition: failed,
    });
  }

  /** @param depth path components below the directory; 0 counts as 1. */
  async list(path: string, depth: number): Promise<readonly FileInfo[]> {
    const absolute = this.resolve(path);
    const { maxListEntries } = this.#limits;
    const collect = async (): Promise<readonly FileInfo[]> => {
      const entries: FileInfo[] = [];
      for await (const entry of this.#files.list(absolute, Math.max(depth, 1))) {
        if (entries.length === maxListEntries)
          throw new SandboxError(
            "listing_limit_reached",
            `more than ${maxListEntries} entries below ${absolute}`,
          );
        entries.push(entry);
      }
      return entries;
    };
    return translateErrors(collect(), {
      not_found: explainedAs(
        "path_not_found",
        `path not found: lstat ${absolute}: no such file or directory`,
      ),
      invalid_argument: explainedAs("path_is_file", `path is not a directory: ${absolute}`),
      failed_precondition: explainedAs("symlink_loop", `cyclic symlink or chain >255 links at "${absolute}"`),
    });
  }

  async remove(path: string): Promise<void> {
    const absolute = this.resolve(path);
    const failed = failureOf("error removing file or directory");
    await translateErrors(this.#files.remove(absolute), {
      invalid_argument: failed,
      permission_denied: failed,
      failed_precondition: failed,
      internal: failed,
    });
  }

  /** Opens a regular file to be read. */
  async open(path: string): Promise<OpenFile> {
    const absolute = this.resolve(path);
    const doing = `error opening file '${absolute}'`;
    const missing = explainedAs("path_not_found", `path '${absolute}' does not exist`);
    return translateErrors(this.#files.read(absolute), {
      internal: failureOf(doing),
      // No failure of the server: the memory of a process, for example.
      permission_denied: (error) =>
        new SandboxError("path_not_permitted", `${doing}: ${error.message}`, { cause: error }),
      not_found: missing,
      invalid_argument: async () => {
        const info = await this.#statIfPresent(absolute);
        if (info === undefined) return missing();
        return info.kind === "directory"
          ? new SandboxError("path_is_directory", `path '${absolute}' is a directory`)
          : new SandboxError("file_not_regular", `path '${absolute}' is not a regular file`);
      },
    });
  }

  /** Starts an upload of one or more files, which all get this metadata. */
  startUpload(metadata: Readonly<Record<string, string>>): Upload {
    const { maxFilesPerUpload } = this.#limits;
    const writtenPaths = new Set<string>();
    return {
      write: async (path, content) => {
        const absolute = this.resolve(path);
        if (writtenPaths.size === maxFilesPerUpload)
          throw new SandboxError("upload_invalid", `one upload request can have ${maxFilesPerUpload} files`);
        const key = posix.normalize(absolute);
        if (writtenPaths.has(key))
          throw new SandboxError(
            "upload_invalid",
            `you cannot upload multiple files to the same path '${absolute}' in one upload request, only the first specified file was uploaded`,
          );
        writtenPaths.add(key);
        return this.#write(absolute, content, metadata);
      },
    };
  }

  /**
   * Joins files into one, which appears whole or not at all, and removes them.
   * @throws SandboxError invalid_argument (the destination among the sources, a source that is no regular file, a
   * destination that is a directory), not_found `source file not found: <path>`, resource_exhausted (with a
   * `shortage`). The sources are unchanged then.
   */
  async compose(sources: readonly string[], destination: string): Promise<FileInfo> {
    const to = this.resolve(destination);
    const from = sources.map((source) => this.resolve(source));
    const realPaths = new RealPaths(this.#files);
    const targets = [await realPaths.ofEntry(to), await realPaths.ofTarget(to)];
    for (const source of new Set(from)) {
      const missing = missingSource(source);
      const info = await translateErrors(this.#files.stat(source), {
        not_found: missing,
        invalid_argument: missing,
      });
      if (info.kind !== "file")
        throw new SandboxError("file_not_regular", `source path is not a regular file: ${source}`);
      // Removing the sources would remove the result.
      if (targets.includes(await realPaths.ofEntry(source)))
        throw new SandboxError("move_into_itself", `source path is the destination: ${source}`);
    }
    const written = await this.#write(to, this.#joined(from), {});
    for (const source of new Set(from)) {
      // Removes a link, not its target.
      await this.#files.remove(source);
    }
    return written;
  }

  async *#joined(paths: readonly string[]): AsyncGenerator<Uint8Array> {
    for (const path of paths) {
      // One at a time: there may be more sources than descriptors.
      await using file = await translateErrors(this.#files.read(path), {
        not_found: missingSource(path),
        invalid_argument: explainedAs("file_not_regular", `source path is not a regular file: ${path}`),
      });
      yield* file.content();
    }
  }

  async #write(
    path: string,
    content: Content,
    metadata: Readonly<Record<string, string>>,
  ): Promise<FileInfo> {
    const files = this.#files;
    if (content instanceof Uint8Array && files.writeWhole !== undefined) {
      const options = { user: this.#user.name, metadata };
      return this.#explained(files.writeWhole(path, content, options), path, () => content.byteLength);
    }
    return this.#writeStream(path, content instanceof Uint8Array ? once(content) : content, metadata);
  }

  async #writeStream(
    path: string,
    content: AsyncIterable<Uint8Array>,
    metadata: Readonly<Record<string, string>>,
  ): Promise<FileInfo> {
    let writtenBytes = 0;
    let sourceFailure: { readonly error: unknown } | undefined;
    async function* counted(): AsyncGenerator<Uint8Array> {
      try {
        for await (const chunk of content) {
          writtenBytes += chunk.length;
          yield chunk;
        }
      } catch (error) {
        sourceFailure = { error };
        throw error;
      }
    }
    try {
      const written = this.#files.write(path, counted(), { user: this.#user.name, metadata });
      return await this.#explained(written, path, () => writtenBytes);
    } catch (error) {
      // A backend may wrap the error of the client's stream.
      if (sourceFailure !== undefined) throw sourceFailure.error;
      throw error;
    }
  }

  #explained(written: Promise<FileInfo>, path: string, writtenBytes: () => number): Promise<FileInfo> {
    return translateErrors(written, {
      resource_exhausted: (error) => withoutRoom(error, writtenBytes()),
      invalid_argument: (error) => this.#whyNotWritten(path, error),
      already_exists: (error) => this.#whyNotWritten(path, error),
    });
  }

  async #whyNotWritten(path: string, error: SandboxError): Promise<SandboxError> {
    const info = await this.#statIfPresent(path);
    if (info?.kind === "directory")
      return new SandboxError("path_is_directory", `path is a directory: ${path}`);
    const file = await this.#fileAbove(path);
    if (file === undefined) return error;
    return new SandboxError("file_operation_failed", `error ensuring directories: path is a file: ${file}`);
  }

  /** The nearest existing ancestor, if it is a file, below which nothing can exist. */
  async #fileAbove(path: string): Promise<string | undefined> {
    for (let above = posix.dirname(path); above !== "/"; above = posix.dirname(above)) {
      const info = await this.#statIfPresent(above);
      if (info !== undefined) return info.kind === "directory" ? undefined : above;
    }
    return undefined;
  }

  async #statIfPresent(path: string): Promise<FileInfo | undefined> {
    try {
      return await this.#files.stat(path);
    } catch (error) {
      // Below a file, stat says "not a directory", which is invalid_argument.
      if (error instanceof SandboxError) return undefined;
      throw error;
    }
  }

  get #files(): Files {
    return this.sandbox.runtime.files;
  }
}

/** Content of a file: a stream, or all of it. */
type Content = AsyncIterable<Uint8Array> | Uint8Array;

export interface Upload {
  /**
   * Writes one file completely, or nothing when `content` throws.
   * @throws SandboxError invalid_argument (a directory, a path used before, too many files), resource_exhausted (with a
   * `shortage`), internal (a file where a directory is needed).
   */
  write(path: string, content: Content): Promise<FileInfo>;
}

async function* once(content: Uint8Array): AsyncGenerator<Uint8Array> {
  yield content;
}

/** Other shortages, such as of descriptors, stay as they are. */
function withoutRoom(error: SandboxError, writtenBytes: number): SandboxError {
  const { shortage } = error;
  if (shortage === undefined) return error;
  const message =
    shortage === "inodes"
      ? "not enough inodes available"
      : `attempted to write ${writtenBytes} bytes: not enough disk space available`;
  return new SandboxError("disk_full", message, { cause: error, shortage });
}

/** The explanation of an error by one reason and text. */
export function explainedAs(reason: Reason, text: string): () => SandboxError {
  return () => new SandboxError(reason, text);
}

function missingSource(path: string): () => SandboxError {
  return explainedAs("path_not_found", `source file not found: ${path}`);
}

function failureOf(operation: string): (error: SandboxError) => SandboxError {
  return (error) =>
    new SandboxError("file_operation_failed", `${operation}: ${error.message}`, { cause: error });
}

type Explanations = Partial<Record<ErrorCode, (error: SandboxError) => SandboxError | Promise<SandboxError>>>;

/** Gives the errors of a backend the texts that clients know. */
export async function translateErrors<T>(result: Promise<T>, explanations: Explanations): Promise<T> {
  try {
    return await result;
  } catch (error) {
    if (!(error instanceof SandboxError)) throw error;
    const explanation = await explanations[error.code]?.(error);
    // The service's own refusals pass through here, too, with the right text already.
    throw explanation ?? error;
  }
}
