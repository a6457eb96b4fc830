import { SandboxError } from "../../kernel/errors.js";
import type { Reason } from "../../kernel/reasons.js";

export interface FailedFileOperation {
  /** The name of an errno: `ENOENT`. */
  readonly errno: string;
  readonly operation: string;
  /** As the sandbox sees it. */
  readonly path: string;
  /** For `ENOSPC` and `EDQUOT`: true when inodes ran out, not space. False when absent. */
  readonly lacksInodes?: boolean | undefined;
  readonly cause: unknown;
}

const FAILURES: ReadonlyMap<string, readonly [Reason, string]> = new Map([
  ["ENOENT", ["path_not_found", "no such file or directory"]],
  ["ENOTDIR", ["path_is_file", "not a directory"]],
  ["EISDIR", ["path_is_directory", "is a directory"]],
  ["EEXIST", ["path_exists", "file exists"]],
  ["ENOTEMPTY", ["directory_not_empty", "directory not empty"]],
  ["EBUSY", ["path_busy", "device or resource busy"]],
  ["ETXTBSY", ["path_busy", "text file busy"]],
  ["EXDEV", ["cross_device_link", "invalid cross-device link"]],
  ["EACCES", ["path_not_permitted", "permission denied"]],
  ["EPERM", ["path_not_permitted", "operation not permitted"]],
  ["EROFS", ["path_not_permitted", "read-only file system"]],
  ["ENOSPC", ["disk_full", "not enough disk space available"]],
  ["EDQUOT", ["disk_full", "disk quota exceeded"]],
  ["EMFILE", ["host_resources_exhausted", "too many open files"]],
  ["ENFILE", ["host_resources_exhausted", "too many open files in system"]],
  ["ENOMEM", ["host_resources_exhausted", "cannot allocate memory"]],
  ["EOVERFLOW", ["listing_limit_reached", "too many entries"]],
  ["EFBIG", ["file_too_large", "file too large"]],
  ["ENAMETOOLONG", ["path_invalid", "file name too long"]],
  ["EINVAL", ["path_invalid", "invalid argument"]],
  ["EILSEQ", ["path_invalid", "invalid file name"]],
  ["ENXIO", ["file_not_regular", "not a regular file"]],
  ["EAGAIN", ["path_unstable", "the path keeps changing"]],
]);

/** Of files that the kernel makes up, such as the memory of a process: nothing is wrong with the server or a disk. */
const UNREADABLE: ReadonlyMap<string, readonly [Reason, string]> = new Map([
  ["EIO", ["file_not_regular", "input/output error"]],
  ["ENODATA", ["file_not_regular", "no data available"]],
  ["ENODEV", ["file_not_regular", "no such device"]],
  ["EOPNOTSUPP", ["file_not_regular", "operation not supported"]],
  ["ENOTSUP", ["file_not_regular", "operation not supported"]],
  ["ESRCH", ["path_not_found", "no such process"]],
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
    return new SandboxError("symlink_loop", `cyclic symlink or chain >255 links at "${path}"`, { cause });
  }
  if (lacksInodes && WITHOUT_ROOM.has(errno)) {
    const message = `${operation} ${path}: not enough inodes available`;
    return new SandboxError("disk_full", message, { cause, shortage: "inodes" });
  }
  const failure = FAILURES.get(errno) ?? (operation === "read" ? UNREADABLE.get(errno) : undefined);
  if (failure === undefined) return undefined;
  const [reason, text] = failure;
  const shortage = WITHOUT_ROOM.has(errno) ? "space" : undefined;
  return new SandboxError(reason, `${operation} ${path}: ${text}`, { cause, shortage });
}

/** The refusal to watch a directory on a network file system, with envd's message. */
export function networkMountError(path: string, cause?: unknown): SandboxError {
  const text = `cannot watch path on network filesystem: ${path}`;
  return new SandboxError("network_mount_not_watchable", text, { cause });
}
