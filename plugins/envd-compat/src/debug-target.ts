import type { IncomingHttpHeaders } from "node:http";
import { CODE_PORT, ENVD_PORT, type TargetResolver } from "@coppice/core";
import type { DebugSandbox } from "./debug-sandbox.js";

const PORTS: ReadonlyMap<string, number> = new Map([
  ["envd", ENVD_PORT],
  ["code", CODE_PORT],
]);

/**
 * Sends what arrives at the fixed ports of debug mode to the shared sandbox. That one asks for no
 * token, so it takes both a loopback listener and a client that no foreign web page drives.
 */
export function debugTarget(debugSandbox: DebugSandbox): TargetResolver {
  return async (message, _url, listener) => {
    const port = PORTS.get(listener.name);
    if (port === undefined || !listener.isLoopback || !isLocalClient(message.headers)) return undefined;
    return { sandbox: await debugSandbox.get(), port };
  };
}

/**
 * False for a browser on a page from elsewhere: its requests reach loopback from the user's own machine,
 * by another origin or by a name of the page's that was made to resolve here.
 */
function isLocalClient({ host, origin }: IncomingHttpHeaders): boolean {
  return isLoopbackUrl(`http://${host ?? ""}`) && (origin === undefined || isLoopbackUrl(origin));
}

function isLoopbackUrl(text: string): boolean {
  const hostname = URL.canParse(text) ? new URL(text).hostname : "";
  return hostname === "localhost" || hostname === "[::1]" || /^127(\.\d{1,3}){3}$/.test(hostname);
}
