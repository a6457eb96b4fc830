import { access, constants, realpath } from "node:fs/promises";
import { isAbsolute } from "node:path";
import { isInSystem } from "./base-template.js";

/**
 * Resolves the configured program.
 * @returns its path without links; undefined for one that sandboxes find themselves: a plain name, or a path in /usr.
 * @throws Error when it is no program.
 */
export async function findNode(program: string | undefined): Promise<string | undefined> {
  if (program === undefined || !isAbsolute(program)) return undefined;
  await access(program, constants.X_OK);
  const path = await realpath(program);
  return isInSystem(path) ? undefined : path;
}
