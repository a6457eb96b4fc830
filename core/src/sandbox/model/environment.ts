import type { User } from "../contract/backend.js";
import { DEFAULT_PATH } from "../contract/process.js";
import type { SandboxRecord } from "./live-sandbox.js";
import { posix } from "node:path";
import { SandboxError } from "../../kernel/errors.js";

/** What the variables of a sandbox depend on. */
interface RecordedSandbox {
  readonly record: Pick<SandboxRecord, "id" | "template" | "environment">;
}

/** Variables of every process of a sandbox, in addition to those of its account. */
export function sandboxEnvironment(sandbox: RecordedSandbox): Record<string, string> {
  const { id, template, environment } = sandbox.record;
  return { E2B_SANDBOX: "true", E2B_SANDBOX_ID: id, E2B_TEMPLATE_ID: template, ...environment };
}

/**
 * The complete environment of a process: PATH, the account, the sandbox's own variables, then `extra`; later ones win.
 */
export function processEnvironment(
  sandbox: RecordedSandbox,
  user: User,
  extra: Readonly<Record<string, string>> = {},
): Record<string, string> {
  return {
    PATH: DEFAULT_PATH,
    HOME: user.home,
    USER: user.name,
    LOGNAME: user.name,
    ...sandboxEnvironment(sandbox),
    ...extra,
  };
}

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
