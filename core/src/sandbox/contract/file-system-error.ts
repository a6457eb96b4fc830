import { type ErrorCode, SandboxError } from "../../kernel/errors.js";

export interface FailedFileOperation {
  /** The name of an errno: `ENOENT`. */
  readonly errno: string;
  /** Name of the failed system call: `lstat`. */
  readonly operation: string;
  /** As the sandbox sees it. */
  readonly path: string;
  /** For `ENOSPC` and `EDQUOT`: true when inodes ran out, not space. False when absent. */
  readonly lacksInodes?: boolean | undefined;
  readonly cause: unknown;
}

const FAILURES: ReadonlyMap<string, readonly [ErrorCode, string]> = new Map([
  ["ENOENT", ["not_found", "no such file or directory"]],
  ["ENOTDIR", ["invalid_argument", "not a directory"]],
  ["EISDIR", ["invalid_argument", "is a directory"]],
  ["EEXIST", ["already_exists", "file exists"]],
  ["ENOTEMPTY", ["failed_precondition", "directory not empty"]],
  ["EBUSY", ["failed_precondition", "device or resource busy"]],
  ["ETXTBSY", ["failed_precondition", "text file busy"]],
  ["EXDEV", ["failed_precondition", "invalid cross-device link"]],
  ["EACCES", ["permission_denied", "permission denied"]],
  ["EPERM", ["permission_denied", "operation not permitted"]],
  ["EROFS", ["permission_denied", "read-only file system"]],
  ["ENOSPC", ["resource_exhausted", "not enough disk space available"]],
  ["EDQUOT", ["resource_exhausted", "disk quota exceeded"]],
  ["EMFILE", ["resource_exhausted", "too many open files"]],
  ["ENFILE", ["resource_exhausted", "too many open files in system"]],
  ["ENOMEM", ["resource_exhausted", "cannot allocate memory"]],
  ["EOVERFLOW", ["resource_exhausted", "too many entries"]],
  ["EFBIG", ["resource_exhausted", "file too large"]],
  ["ENAMETOOLONG", ["invalid_argument", "file name too long"]],
  ["EINVAL", ["invalid_argument", "invalid argument"]],
  ["EILSEQ", ["invalid_argument", "invalid file name"]],
  ["ENXIO", ["invalid_argument", "not a regular file"]],
  ["EAGAIN", ["unavailable", "the path keeps changing"]],
]);

const WITHOUT_ROOM: ReadonlySet<string> = new Set(["ENOSPC", "EDQUOT", "EFBIG"]);

/**
 * Translates a failed file operation for the client, with envd's messages: `lstat /x: no such file or directory`.
 * Undefined for an errno that no file operation should have.
 */
export function fileSystemError({
  errno,
  operation,
  path,
  lacksInodes = false,
  cause,
}: FailedFileOperation): SandboxError | undefined {
  if (errno === "ELOOP") {
    return new SandboxError("failed_precondition", `cyclic symlink or chain >255 links at "${path}"`, {
      cause,
    });
  }
  if (lacksInodes && WITHOUT_ROOM.has(errno)) {
    const message = `${operation} ${path}: not enough inodes available`;
    return new SandboxError("resource_exhausted", message, { cause, shortage: "inodes" });
  }
  const failure = FAILURES.get(errno);
  if (failure === undefined) return undefined;
  const [code, reason] = failure;
  const shortage = WITHOUT_ROOM.has(errno) ? "space" : undefined;
  return new SandboxError(code, `${operation} ${path}: ${reason}`, { cause, shortage });
}

/** The refusal to watch a directory on a network file system, with envd's message. */
export function networkMountError(path: string, cause?: unknown): SandboxError {
  return new SandboxError("invalid_argument", `cannot watch path on network filesystem: ${path}`, { cause });
}
