import type { SandboxId } from "../../sandbox/contract/backend.js";

/** Events of a sandbox are with several servers, in turn. */
const SANDBOX = /(?<!^\/events)\/sandboxes\/([a-z0-9]+)(?:-[a-z0-9]+)?(?:\/|$)/;

/** The sandbox that the path of a request to an API names: all of them have it after `/sandboxes/`. */
export function sandboxInPath(pathname: string): SandboxId | undefined {
  return SANDBOX.exec(pathname)?.[1];
}
