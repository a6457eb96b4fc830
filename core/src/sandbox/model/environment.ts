import type { User } from "../contract/backend.js";
import { DEFAULT_PATH } from "../contract/process.js";
import type { SandboxRecord } from "./live-sandbox.js";

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
