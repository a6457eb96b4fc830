import { lstat, mkdtemp, readdir, realpath } from "node:fs/promises";
import { join } from "node:path";
import { isGone, type Owner } from "./owner.js";

const NAME = /^coppice-.+-([0-9a-f]{4}\.\d+\.[0-9a-f]{8})-\w{6}$/;

/** Creates a directory (0700) that names its owner, so that a crash at any moment leaves an attributable directory. */
export async function makeOwnedDirectory(parent: string, purpose: string, owner: Owner): Promise<string> {
  return realpath(await mkdtemp(join(parent, `coppice-${purpose}-${owner}-`)));
}

/** Directories of servers that have ended. */
export async function abandonedDirectories(parent: string): Promise<readonly string[]> {
  const abandoned: string[] = [];
  const resolved = await realpath(parent);
  for (const name of await readdir(resolved)) {
    const owner = NAME.exec(name)?.[1];
    if (owner === undefined) continue;
    const path = join(resolved, name);
    if ((await isOurs(path)) && (await isGone(owner))) abandoned.push(path);
  }
  return abandoned;
}

// The parent is often /tmp, where any user can create a directory with such a name.
async function isOurs(path: string): Promise<boolean> {
  const stats = await lstat(path).catch(() => undefined);
  return stats !== undefined && stats.isDirectory() && stats.uid === process.getuid?.();
}
