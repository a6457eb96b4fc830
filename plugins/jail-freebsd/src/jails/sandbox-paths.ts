import { join } from "node:path";
import type { SandboxId } from "@coppice/core/backend";

/** Names of a sandbox on the host, and paths of its files there. */
export interface SandboxPaths {
  /** Name of the jail and the dataset. */
  readonly name: string;
  /** Mount point of the clone. */
  readonly root: string;
  readonly conf: string;
  /** Socket of the agent inside. */
  readonly socket: string;
  /** Socket of the helper that starts commands. */
  readonly helper: string;
}

/** @throws Error for an id that is not `[a-z0-9]+`. */
export function sandboxPaths(directory: string, id: SandboxId): SandboxPaths {
  if (!/^[a-z0-9]+$/.test(id)) throw new Error(`'${id}' is no id of a sandbox`);
  const name = `e2b-${id}`;
  return {
    name,
    root: join(directory, "roots", name),
    conf: join(directory, "conf", `${name}.conf`),
    socket: join(directory, "sockets", id),
    helper: join(directory, "helpers", id),
  };
}
