import { SandboxError } from "../../kernel/errors.js";
import type { SandboxId } from "./backend.js";

/**
 * The sandbox id in a path. Old clients send `<id>-<client id>`; the part after the dash is ignored.
 * @throws SandboxError invalid_argument
 */
export function parseSandboxId(parameter: string | undefined): SandboxId {
  const [id = ""] = (parameter ?? "").split("-");
  if (!/^[a-z0-9]+$/.test(id)) throw new SandboxError("sandbox_id_invalid", "Invalid sandbox ID");
  return id;
}
