import { type Guard, isLocalClient, SandboxError } from "@coppice/core";
import { DEBUG_SANDBOX_ID } from "./debug-sandbox.js";

/**
 * The debug sandbox has no token and an id that everybody knows. So it is for clients of this machine alone, at each
 * of its ports and by whatever address, and not for web pages from elsewhere that a browser here shows.
 */
export const debugGuard: Guard = ({ target, headers }) => {
  if (target?.sandbox.record.id !== DEBUG_SANDBOX_ID || isLocalClient(headers)) return;
  throw new SandboxError("permission_denied", "the debug sandbox is for clients of this machine");
};
