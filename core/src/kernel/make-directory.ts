import { existsSync, mkdirSync } from "node:fs";
import { dirname } from "node:path";
import { ignoring } from "./errors.js";

/**
 * Makes a directory and its missing parents, one at a time: Node's own `recursive` never returns where nothing can be
 * made, as in /proc.
 * @throws Error of the file system.
 */
export function makeDirectory(path: string, mode: number): void {
  if (existsSync(path)) return;
  const parent = dirname(path);
  if (parent !== path) makeDirectory(parent, mode);
  try {
    mkdirSync(path, { mode });
  } catch (error) {
    // Another process may have made it meanwhile.
    ignoring("EEXIST")(error);
  }
}
