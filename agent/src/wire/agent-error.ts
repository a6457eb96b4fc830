import { SandboxError, fileSystemError } from "@coppice/core/backend";
import { PayloadReader } from "./frames.js";

/** The agent's description of a failed request. */
export interface Failure {
  /** A value of `Stage`. */
  readonly stage: number;
  /** Name of an errno: `ENOENT`. */
  readonly code: string;
  readonly detail: string;
}

export function readFailure(payload: Buffer): Failure {
  const reader = new PayloadReader(payload);
  const failure = { stage: reader.u8(), code: reader.text(), detail: reader.text() };
  reader.end();
  return failure;
}

/** Translates a failed file operation, with the message of envd: `lstat /x: no such file or directory`. */
export function fileError(failure: Failure, operation: string, path: string): SandboxError {
  const { code: errno, detail } = failure;
  const lacksInodes = detail === "inodes";
  return (
    fileSystemError({ errno, operation, path, lacksInodes, cause: failure }) ??
    new SandboxError("file_operation_failed", `${operation} ${path}: ${errno}`, { cause: failure })
  );
}

const EXHAUSTED: ReadonlySet<string> = new Set(["EAGAIN", "EMFILE", "ENFILE", "ENOMEM"]);

/** For a lack of processes, memory or descriptors, or an unexpected error. */
export function resourceError(failure: Failure, what: string): SandboxError {
  const reason = EXHAUSTED.has(failure.code) ? "host_resources_exhausted" : "internal_error";
  return new SandboxError(reason, `${what}: ${failure.code}`, { cause: failure });
}
