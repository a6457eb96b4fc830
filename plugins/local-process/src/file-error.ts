import { type ErrorCode, SandboxError } from "@coppice/core";
import { WalkError, codeOf } from "./walk.js";

const FAILURES: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  ENOENT: ["not_found", "no such file or directory"],
  ENOTDIR: ["invalid_argument", "not a directory"],
  EISDIR: ["invalid_argument", "is a directory"],
  EEXIST: ["already_exists", "file exists"],
  ENOTEMPTY: ["failed_precondition", "directory not empty"],
  EBUSY: ["failed_precondition", "device or resource busy"],
  ETXTBSY: ["failed_precondition", "text file busy"],
  EACCES: ["permission_denied", "permission denied"],
  EPERM: ["permission_denied", "operation not permitted"],
  EROFS: ["permission_denied", "read-only file system"],
  ENOSPC: ["resource_exhausted", "not enough disk space available"],
  EDQUOT: ["resource_exhausted", "disk quota exceeded"],
  EMFILE: ["resource_exhausted", "too many open files"],
  ENFILE: ["resource_exhausted", "too many open files in system"],
  ENOMEM: ["resource_exhausted", "cannot allocate memory"],
  EFBIG: ["resource_exhausted", "file too large"],
  ENAMETOOLONG: ["invalid_argument", "file name too long"],
  EINVAL: ["invalid_argument", "invalid argument"],
  ENXIO: ["invalid_argument", "not a regular file"],
};

/**
 * What a failed call means to who asked for it, in the words of envd: `lstat /x: no such file or directory`.
 * An error that comes from somewhere else, such as the source of an upload, stays what it is.
 */
export function fileError(error: unknown, operation: string, path: string): unknown {
  if (error instanceof SandboxError) return error;
  const code = codeOf(error);
  if (code === undefined) return error;
  if (code === "ELOOP") {
    return new SandboxError("failed_precondition", `cyclic symlink or chain >255 links at "${path}"`, {
      cause: error,
    });
  }
  if (code === "ENOTDIR" && error instanceof WalkError && error.at !== path) {
    return new SandboxError("invalid_argument", `path is a file: ${error.at}`, { cause: error });
  }
  const failure = FAILURES[code];
  if (failure === undefined) return error;
  return new SandboxError(failure[0], `${operation} ${path}: ${failure[1]}`, { cause: error });
}
