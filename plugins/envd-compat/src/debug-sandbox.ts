import {
  CODE_PORT,
  ENVD_PORT,
  type Guard,
  isLocalClient,
  isLoopbackName,
  type LiveSandbox,
  SandboxError,
  type Sandboxes,
  type Targets,
} from "@coppice/core";
import { REASONS } from "./reasons.js";

const DEBUG_SANDBOX_ID = "debug";
const PORTS: ReadonlyMap<string, number> = new Map([
  ["envd", ENVD_PORT],
  ["code", CODE_PORT],
]);

/**
 * Restricts the debug sandbox, which has no token and a well-known id, to clients of this machine, at each port and
 * address, and keeps out foreign web pages in a local browser. Any program can name this machine in `Host`, so the
 * address decides.
 */
export const debugGuard: Guard = (request) => {
  if (request.target?.sandbox.record.id !== DEBUG_SANDBOX_ID) return;
  // The address of every client takes a look through the trusted proxies.
  const { headers, clientAddress, isPassedOn } = request;
  if (isLoopbackName(clientAddress) && !isPassedOn && isLocalClient(headers)) return;
  throw new SandboxError(REASONS.debug_sandbox_remote, "the debug sandbox is for clients of this machine");
};

/**
 * Sends requests at the fixed ports of debug mode to the one sandbox that all its clients share: open, without an end,
 * created at the first request. It requires no token, so it needs both a loopback listener and a client that is no
 * foreign web page. Concurrent requests share one creation; after a kill or a failure the next one creates another.
 */
export function debugTarget(sandboxes: Sandboxes, template: string): Parameters<Targets["add"]>[0] {
  let making: Promise<LiveSandbox> | undefined;
  return async (message, _url, listener) => {
    const port = PORTS.get(listener.name);
    if (port === undefined || !listener.isLoopback || !isLocalClient(message.headers)) return undefined;
    making ??= findOrCreate(sandboxes, template).finally(() => {
      making = undefined;
    });
    return { sandbox: await making, port };
  };
}

async function findOrCreate(sandboxes: Sandboxes, template: string): Promise<LiveSandbox> {
  const found = sandboxes.find(DEBUG_SANDBOX_ID);
  if (found?.isReachable === true) return found;
  // One that is being killed keeps its id until nothing of it is left; killing it again waits for that.
  if (found === undefined)
    await sandboxes.kill(DEBUG_SANDBOX_ID).catch((error: unknown) => {
      if (!(error instanceof SandboxError && error.code === "not_found")) throw error;
    });
  return sandboxes.create({ id: DEBUG_SANDBOX_ID, template, timeoutMs: undefined, secure: false });
}
