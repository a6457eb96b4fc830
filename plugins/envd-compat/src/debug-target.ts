import { CODE_PORT, ENVD_PORT, isLocalClient, type TargetResolver } from "@coppice/core";
import type { DebugSandbox } from "./debug-sandbox.js";

const PORTS: ReadonlyMap<string, number> = new Map([
  ["envd", ENVD_PORT],
  ["code", CODE_PORT],
]);

/**
 * Sends requests at the fixed ports of debug mode to the shared sandbox. It requires no token, so it needs both a
 * loopback listener and a client that is no foreign web page.
 */
export function debugTarget(debugSandbox: DebugSandbox): TargetResolver {
  return async (message, _url, listener) => {
    const port = PORTS.get(listener.name);
    if (port === undefined || !listener.isLoopback || !isLocalClient(message.headers)) return undefined;
    return { sandbox: await debugSandbox.get(), port };
  };
}
