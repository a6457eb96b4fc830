import { SandboxError } from "@coppice/core";
import type { Reason } from "@coppice/core/backend";
import { ShellError, type ShellErrorCode } from "../shell/shell-error.js";

const CODES: Readonly<Partial<Record<Reason, ShellErrorCode>>> = {
  path_not_found: "FILE_NOT_FOUND",
  path_is_directory: "IS_DIRECTORY",
  path_is_file: "NOT_DIRECTORY",
  path_exists: "FILE_EXISTS",
  directory_not_empty: "FILE_EXISTS",
  path_not_permitted: "PERMISSION_DENIED",
  path_busy: "RESOURCE_BUSY",
  path_invalid: "VALIDATION_FAILED",
  file_not_regular: "VALIDATION_FAILED",
  symlink_loop: "VALIDATION_FAILED",
  move_into_itself: "VALIDATION_FAILED",
  root_not_removable: "VALIDATION_FAILED",
  file_too_large: "FILE_TOO_LARGE",
};

/** What the sandbox's files refuse, as a refusal of this interface. Everything else stays as it is. */
export function fileError(error: unknown, path: string): unknown {
  if (!(error instanceof SandboxError)) return error;
  const code =
    CODES[error.reason as Reason] ?? (error.shortage === undefined ? undefined : "FILESYSTEM_ERROR");
  if (code === undefined) return error;
  const message = code === "FILE_NOT_FOUND" ? `File not found: ${path}` : error.message;
  return new ShellError(code, message, { path });
}

/** @throws ShellError for what the sandbox's files refuse. */
export async function translated<T>(path: string, operation: Promise<T>): Promise<T> {
  return await operation.catch((error: unknown) => {
    throw fileError(error, path);
  });
}
