import { SandboxError, fileSystemError } from "@coppice/core/backend";
import { readWhole } from "./frames.js";

/** The agent's description of a failed request. */
export interface Failure {
  /** A value of `Stage`. */
  readonly stage: number;
  /** Name of an errno: `ENOENT`. */
  readonly code: string;
  readonly detail: string;
}

export function readFailure(payload: Buffer): Failure {
  return readWhole(payload, (reader) => ({
    stage: reader.u8(),
    code: reader.text(),
    detail: reader.text(),
  }));
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
