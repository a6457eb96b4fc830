import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox } from "./backend.js";

/** The networking facet of a sandbox. @throws SandboxError invalid_argument when its backend has none. */
export function requireNetworking(
  { networking }: Sandbox,
  backend: string,
): NonNullable<Sandbox["networking"]> {
  if (networking !== undefined) return networking;
  const text = `network rules are not supported: backend '${backend}' cannot restrict what its sandboxes reach`;
  throw new SandboxError("network_rules_unsupported", text);
}
