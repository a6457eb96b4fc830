import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "./backend.js";

/** There is no such sandbox, for whoever asks. */
export class UnknownSandbox extends SandboxError {
  readonly sandboxId: SandboxId;

  /** @param why how it ended, for its owner alone. */
  constructor(sandboxId: SandboxId, why?: string) {
    // The Ruby client looks for "sandbox not found", everybody else for what is before it.
    const text = `Sandbox "${sandboxId}" doesn't exist or you don't have access to it; sandbox not found`;
    super("not_found", why === undefined ? text : `${text}: ${why}`);
    this.sandboxId = sandboxId;
  }
}

/** The one answer for a sandbox that never was, is gone, or is somebody else's. */
export function unknownSandbox(id: SandboxId): SandboxError {
  return new UnknownSandbox(id);
}
