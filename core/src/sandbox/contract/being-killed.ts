import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "./backend.js";

/** Refuses changes of a sandbox that is being killed. */
export function beingKilled(id: SandboxId): SandboxError {
  return new SandboxError("sandbox_being_killed", `Sandbox "${id}" is being killed`);
}
