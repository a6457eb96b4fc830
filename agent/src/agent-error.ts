import { type ErrorCode, SandboxError } from "@coppice/core/backend";
import { PayloadReader } from "./frames.js";

/** What the agent says of a request that failed. */
export interface Failure {
  /** One of `Stage`. */
  readonly stage: number;
  /** The name of an errno: `ENOENT`. */
  readonly code: string;
  readonly detail: string;
}

export function readFailure(payload: Buffer): Failure {
  const reader = new PayloadReader(payload);
  const failure = { stage: reader.u8(), code: reader.text(), detail: reader.text() };
  reader.end();
  return failure;
}

const FILE_FAILURES: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  ENOENT: ["not_found", "no such file or directory"],
  ENOTDIR: ["invalid_argument", "not a directory"],
  EISDIR: ["invalid_argument", "is a directory"],
  EEXIST: ["already_exists", "file exists"],
  ENOTEMPTY: ["failed_precondition", "directory not empty"],
  EBUSY: ["failed_precondition", "device or resource busy"],
  ETXTBSY: ["failed_precondition", "text file busy"],
  ELOOP: ["failed_precondition", "too many levels of symbolic links"],
  EXDEV: ["failed_precondition", "invalid cross-device link"],
  EACCES: ["permission_denied", "permission denied"],
  EPERM: ["permission_denied", "operation not permitted"],
  EROFS: ["permission_denied", "read-only file system"],
  ENOSPC: ["resource_exhausted", "not enough disk space available"],
  EDQUOT: ["resource_exhausted", "disk quota exceeded"],
  EMFILE: ["resource_exhausted", "too many open files"],
  ENFILE: ["resource_exhausted", "too many open files in system"],
  ENOMEM: ["resource_exhausted", "cannot allocate memory"],
  EOVERFLOW: ["resource_exhausted", "too many entries"],
  EFBIG: ["resource_exhausted", "file too large"],
  ENAMETOOLONG: ["invalid_argument", "file name too long"],
  EINVAL: ["invalid_argument", "invalid argument"],
  EILSEQ: ["invalid_argument", "invalid file name"],
  ENXIO: ["invalid_argument", "not a regular file"],
  EAGAIN: ["unavailable", "the path keeps changing"],
};

/** What a failed file operation means, in the words of envd: `lstat /x: no such file or directory`. */
export function fileError(failure: Failure, operation: string, path: string): SandboxError {
  const cause = failure;
  if (failure.code === "ELOOP") {
    return new SandboxError("failed_precondition", `cyclic symlink or chain >255 links at "${path}"`, {
      cause,
    });
  }
  const [code, reason] = FILE_FAILURES[failure.code] ?? ["internal", failure.code];
  return new SandboxError(code, `${operation} ${path}: ${reason}`, { cause });
}

const EXHAUSTED: ReadonlySet<string> = new Set(["EAGAIN", "EMFILE", "ENFILE", "ENOMEM"]);

/** A lack of processes, memory or descriptors, or something that nobody expected. */
export function resourceError(failure: Failure, what: string): SandboxError {
  const code = EXHAUSTED.has(failure.code) ? "resource_exhausted" : "internal";
  return new SandboxError(code, `${what}: ${failure.code}`, { cause: failure });
}
