import { constants } from "node:fs/promises";
import { join } from "node:path";
import { canAccess } from "./can-access.js";

const DIRECTORIES = [
  "/usr/bin",
  "/bin",
  "/usr/sbin",
  "/usr/local/bin",
  "/run/wrappers/bin",
  "/run/current-system/sw/bin",
];

/**
 * Full path of the first of these programs that this host has, whatever the server's PATH; undefined for none.
 * @param root of the host.
 */
export async function findHostProgram(names: readonly string[], root = "/"): Promise<string | undefined> {
  const paths = names.flatMap((name) => DIRECTORIES.map((directory) => join(root, directory, name)));
  for (const path of paths) if (await canAccess(path, constants.X_OK)) return path;
  return undefined;
}
