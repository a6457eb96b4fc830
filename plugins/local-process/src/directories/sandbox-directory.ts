import { chmod, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { makeOwnedDirectory } from "./owned-directory.js";
import type { Owner } from "./owner.js";
import { removeTree } from "../files/remove-tree.js";
import { makeDirectory } from "../files/walk.js";

/** Directories of a sandbox on the disk of this host. */
export interface SandboxDirectory {
  /** Holds everything below. */
  readonly path: string;
  /** The root directory of the sandbox. */
  readonly root: string;
  /** For files on their way in and trees on their way out; the sandbox does not show it. */
  readonly stage: string;
}

/** Everybody may write in it, and remove what is their own. */
const SHARED_DIRECTORY = "tmp";
const INITIAL_DIRECTORIES = ["home/user", "root", SHARED_DIRECTORY];

export interface NewSandboxDirectory {
  /** Directory on the host in which it is made. */
  readonly parent: string;
  readonly id: string;
  readonly owner: Owner;
}

/** Makes the tree of a sandbox, all or nothing. */
export async function makeSandboxDirectory(
  options: NewSandboxDirectory,
  signal: AbortSignal,
): Promise<SandboxDirectory> {
  signal.throwIfAborted();
  const path = await makeOwnedDirectory(options.parent, options.id, options.owner);
  try {
    const directory = sandboxDirectoryAt(path);
    await mkdir(directory.stage, { mode: 0o700 });
    makeDirectory(directory.root);
    for (const name of INITIAL_DIRECTORIES)
      await mkdir(join(directory.root, name), { recursive: true, mode: 0o755 });
    // Not by mkdir, which the umask restricts.
    await chmod(join(directory.root, SHARED_DIRECTORY), 0o1777);
    signal.throwIfAborted();
    return directory;
  } catch (error) {
    await removeSandboxDirectory(path);
    throw error;
  }
}

/** Where things are in a directory that was made before. */
export function sandboxDirectoryAt(path: string): SandboxDirectory {
  return { path, root: join(path, "root"), stage: join(path, "stage") };
}

/** Removes all of it, from every half-built or half-removed state. */
export async function removeSandboxDirectory(path: string): Promise<void> {
  const { root, stage } = sandboxDirectoryAt(path);
  await removeTree(root, stage);
  // What is left is not deep: nothing but what `root` left in the stage.
  await removeTree(path, dirname(path));
}
