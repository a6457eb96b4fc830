import { SandboxError } from "@coppice/core";

/**
 * A failed access to a file of this host, whose message has a path, which no client may see.
 * @returns the error to throw in its place; undefined for an error of another kind.
 */
export function hostFailure(error: unknown): Error | undefined {
  if (!(error instanceof Error)) return undefined;
  const { code, path } = error as NodeJS.ErrnoException;
  if (code === "ENOSPC" || code === "EDQUOT")
    return new SandboxError("store_unavailable", "the server has no room on its disk", { cause: error });
  return path === undefined ? undefined : error;
}
