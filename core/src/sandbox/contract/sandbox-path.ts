import { posix } from "node:path";
import { SandboxError } from "../../kernel/errors.js";
import type { User } from "./backend.js";

/**
 * Resolves a client's path for a user: an empty path is the working directory, and relative ones start there; `~` is
 * the home. These are normalized, absolute ones stay as they are.
 * @throws SandboxError invalid_argument for `~other` and for a NUL byte.
 */
export function resolveSandboxPath(path: string, user: User): string {
  if (path.includes("\0")) throw new SandboxError("path_invalid", "a path cannot contain a NUL byte");
  const { home, workdir = home } = user;
  if (path === "") return workdir;
  if (path === "~") return home;
  if (path.startsWith("~/")) return below(home, path.slice(2));
  if (path.startsWith("~")) {
    throw new SandboxError("path_invalid", "cannot expand user-specific home dir");
  }
  return path.startsWith("/") ? path : below(workdir, path);
}

function below(home: string, path: string): string {
  const joined = posix.join(home, path);
  return joined.endsWith("/") && joined !== "/" ? joined.slice(0, -1) : joined;
}
