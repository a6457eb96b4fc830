import { access, constants, realpath } from "node:fs/promises";
import { isAbsolute } from "node:path";
import { isInSystem } from "./base-template.js";

/**
 * Looks at the program that the operator named. @returns where it is, without links; undefined for one that sandboxes
 * find by themselves: a name without a path, or one in /usr. @throws Error when it is no program.
 */
export async function findNode(program: string | undefined): Promise<string | undefined> {
  if (program === undefined || !isAbsolute(program)) return undefined;
  await access(program, constants.X_OK);
  const path = await realpath(program);
  return isInSystem(path) ? undefined : path;
}
