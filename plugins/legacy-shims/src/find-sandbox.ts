import type { LiveSandbox, Sandboxes } from "@coppice/core";

/** The sandbox that a path names; what follows a dash is an old client's own. @throws SandboxError not_found */
export function findSandbox(sandboxes: Sandboxes, parameter: string | undefined): LiveSandbox {
  const [id = ""] = (parameter ?? "").split("-");
  return sandboxes.get(id);
}
