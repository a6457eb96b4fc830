import { chmod, lstat, mkdir, mkdtemp, readdir, realpath } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Owner, isGone } from "./owner.js";
import { removeTree } from "../files/remove-tree.js";
import { makeDirectory } from "../files/walk.js";

/** Directories of a sandbox on this host. */
export interface SandboxDirectory {
  /** Contains the others. */
  readonly path: string;
  readonly root: string;
  /** For incomplete files and trees being removed; invisible in the sandbox. */
  readonly stage: string;
}

/** World-writable with the sticky bit. */
const SHARED_DIRECTORY = "tmp";
const INITIAL_DIRECTORIES = ["home/user", "root", SHARED_DIRECTORY];
/** Its owner is part of the name, so that a crash at any moment leaves an attributable directory. */
const NAME = /^coppice-.+-([0-9a-f]{4}\.\d+\.[0-9a-f]{8})-\w{6}$/;

export interface NewSandboxDirectory {
  /** Directory on the host in which it is created. */
  readonly parent: string;
  readonly id: string;
  readonly owner: Owner;
}

/** Creates the directories of a sandbox, or none. */
export async function makeSandboxDirectory(
  options: NewSandboxDirectory,
  signal: AbortSignal,
): Promise<SandboxDirectory> {
  signal.throwIfAborted();
  const { parent, id, owner } = options;
  const path = await realpath(await mkdtemp(join(parent, `coppice-${id}-${owner}-`)));
  try {
    const directory = sandboxDirectoryAt(path);
    await mkdir(directory.stage, { mode: 0o700 });
    makeDirectory(directory.root);
    for (const name of INITIAL_DIRECTORIES)
      await mkdir(join(directory.root, name), { recursive: true, mode: 0o755 });
    // Not with mkdir, which applies the umask.
    await chmod(join(directory.root, SHARED_DIRECTORY), 0o1777);
    signal.throwIfAborted();
    return directory;
  } catch (error) {
    await removeSandboxDirectory(path);
    throw error;
  }
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

/** Returns the paths of an existing directory. */
export function sandboxDirectoryAt(path: string): SandboxDirectory {
  return { path, root: join(path, "root"), stage: join(path, "stage") };
}

/** Removes a sandbox directory, also a half-created or half-removed one. */
export async function removeSandboxDirectory(path: string): Promise<void> {
  const { root, stage } = sandboxDirectoryAt(path);
  await removeTree(root, stage);
  // The remaining tree is shallow: of `root`, only the parts that were moved to the stage are left.
  await removeTree(path, dirname(path));
}
