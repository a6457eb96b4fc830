import { chmod, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { makeOwnedDirectory } from "./owned-directory.js";
import type { Owner } from "./owner.js";
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
  const path = await makeOwnedDirectory(options.parent, options.id, options.owner);
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
