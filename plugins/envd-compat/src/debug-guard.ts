import { type Guard, SandboxError } from "@coppice/core";
import { DEBUG_SANDBOX_ID } from "./debug-sandbox.js";
import { isLocalClient } from "./local-client.js";

/**
 * The debug sandbox has no token and an id that everybody knows: by whatever address it is asked for, it is
 * for clients of this machine, and not for web pages from elsewhere that a browser here shows.
 */
export const debugGuard: Guard = ({ target, headers }) => {
  if (target?.sandbox.record.id !== DEBUG_SANDBOX_ID || isLocalClient(headers)) return;
  throw new SandboxError("permission_denied", "the debug sandbox is for clients of this machine");
};
