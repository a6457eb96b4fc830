import { SandboxError, fileSystemError } from "@coppice/core/backend";
import { WalkError, codeOf } from "./walk.js";

/**
 * Translates a failed call for the client, with the message of envd: `lstat /x: no such file or directory`. Returns
 * errors without an errno, such as those of an upload's source, unchanged.
 */
export function fileError(error: unknown, operation: string, path: string): unknown {
  if (error instanceof SandboxError) return error;
  const code = codeOf(error);
  if (code === undefined) return error;
  if (code === "ENOTDIR" && error instanceof WalkError && error.at !== path) {
    return new SandboxError("path_is_file", `path is a file: ${error.at}`, { cause: error });
  }
  return fileSystemError({ errno: code, operation, path, cause: error }) ?? error;
}

/** Error with the client's path instead of the one that was used for it. */
export function asAsked(error: unknown, used: string, path: string): unknown {
  if (used === path || used === "/") return error;
  if (!(error instanceof SandboxError) || !error.message.includes(used)) return error;
  return new SandboxError(error, error.message.replaceAll(used, path), { cause: error });
}
