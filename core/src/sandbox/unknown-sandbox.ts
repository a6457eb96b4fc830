import { SandboxError } from "../kernel/errors.js";
import type { SandboxId } from "./backend.js";

/** The one answer for a sandbox that never was, is gone, or is somebody else's. */
export function unknownSandbox(id: SandboxId): SandboxError {
  // The Ruby client looks for the last two words, everybody else for the rest.
  const text = `Sandbox "${id}" doesn't exist or you don't have access to it; sandbox not found`;
  return new SandboxError("not_found", text);
}
