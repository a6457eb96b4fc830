import { type LiveSandbox, parseSandboxId, type Sandboxes } from "@coppice/core";

/** The sandbox that a path names. @throws SandboxError invalid_argument for what is no id, not_found */
export function findSandbox(sandboxes: Sandboxes, parameter: string | undefined): LiveSandbox {
  return sandboxes.get(parseSandboxId(parameter));
}
