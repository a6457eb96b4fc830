import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "./backend.js";

/** The answer to whoever wants to change a sandbox that is on its way out. */
export function beingKilled(id: SandboxId): SandboxError {
  return new SandboxError("aborted", `Sandbox "${id}" is being killed`);
}
