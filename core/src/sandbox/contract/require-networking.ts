import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox } from "./backend.js";

/** The facet of a sandbox that keeps to network rules. @throws SandboxError invalid_argument when nothing does. */
export function requireNetworking(
  { networking }: Sandbox,
  backend: string,
): NonNullable<Sandbox["networking"]> {
  if (networking !== undefined) return networking;
  const text = `network rules are not supported: backend '${backend}' cannot restrict what its sandboxes reach`;
  throw new SandboxError("invalid_argument", text);
}
