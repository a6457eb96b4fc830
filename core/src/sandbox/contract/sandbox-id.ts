import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "./backend.js";

/** The one answer for a sandbox that never existed, has ended, or belongs to another tenant. */
export class UnknownSandbox extends SandboxError {
  readonly sandboxId: SandboxId;

  /** @param why how it ended, for its owner alone. */
  constructor(sandboxId: SandboxId, why?: string) {
    // The Ruby client looks for "sandbox not found", all others for the part before it.
    const text = `Sandbox "${sandboxId}" doesn't exist or you don't have access to it; sandbox not found`;
    super("sandbox_not_found", why === undefined ? text : `${text}: ${why}`);
    this.sandboxId = sandboxId;
  }
}

/**
 * The sandbox id in a path. Old clients send `<id>-<client id>`; the part after the dash is ignored.
 * @throws SandboxError invalid_argument
 */
export function parseSandboxId(parameter: string | undefined): SandboxId {
  const [id = ""] = (parameter ?? "").split("-");
  if (!/^[a-z0-9]+$/.test(id)) throw new SandboxError("sandbox_id_invalid", "Invalid sandbox ID");
  return id;
}
