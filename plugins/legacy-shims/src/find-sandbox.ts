import { type LiveSandbox, parseSandboxId, type Sandboxes } from "@coppice/core";

/** The sandbox in a path. @throws SandboxError invalid_argument for an invalid id, not_found */
export function findSandbox(sandboxes: Sandboxes, parameter: string | undefined): LiveSandbox {
  return sandboxes.get(parseSandboxId(parameter));
}
