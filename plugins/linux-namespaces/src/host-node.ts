import { access, constants, realpath } from "node:fs/promises";
import { basename, dirname, isAbsolute } from "node:path";

/** A Node.js of this host that its sandboxes do not have by themselves. */
export interface HostNode {
  /** Directory that the program is in, without links. */
  readonly directory: string;
  readonly name: string;
}

/**
 * Looks at the program that the operator named. @returns undefined for one that sandboxes find by themselves: a name
 * without a path, or one in /usr. @throws Error when it is no program.
 */
export async function findNode(program: string | undefined): Promise<HostNode | undefined> {
  if (program === undefined || !isAbsolute(program)) return undefined;
  await access(program, constants.X_OK);
  const path = await realpath(program);
  if (/^\/usr\/(?!local\/)/.test(path)) return undefined;
  return { directory: dirname(path), name: basename(path) };
}
