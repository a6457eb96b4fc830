import { join } from "node:path";
import type { SandboxId } from "@coppice/core/backend";

/** Files of a sandbox on the host, beside its dataset, and its names there. */
export interface SandboxPaths {
  /** Of its jail and its dataset. */
  readonly name: string;
  /** Where its clone is mounted. */
  readonly root: string;
  readonly conf: string;
  /** Where the agent inside listens. */
  readonly socket: string;
  /** Where its helper listens, which starts commands. */
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
