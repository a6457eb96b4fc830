import { type Guard, isLocalClient, SandboxError } from "@coppice/core";
import { DEBUG_SANDBOX_ID } from "./debug-sandbox.js";

/**
 * Restricts the debug sandbox, which has no token and a well-known id, to clients of this machine, at each port and
 * address, and keeps out foreign web pages in a local browser.
 */
export const debugGuard: Guard = ({ target, headers }) => {
  if (target?.sandbox.record.id !== DEBUG_SANDBOX_ID || isLocalClient(headers)) return;
  throw new SandboxError("debug_sandbox_remote", "the debug sandbox is for clients of this machine");
};
