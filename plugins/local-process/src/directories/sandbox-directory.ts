import { chmod, lstat, mkdir, mkdtemp, readdir, realpath, readFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { execFile } from "node:child_process";
import { createHash } from "node:crypto";
import { readlinkSync } from "node:fs";
import { hostname } from "node:os";
import { promisify } from "node:util";
import { removeTree } from "../files/remove-tree.js";
import { makeDirectory } from "../files/walk.js";

export interface SandboxDirectory {
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

interface NewSandboxDirectory {
  readonly parent: string;
  readonly id: string;
  readonly owner: Owner;
}

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

export function sandboxDirectoryAt(path: string): SandboxDirectory {
  return { path, root: join(path, "root"), stage: join(path, "stage") };
}

export async function removeSandboxDirectory(path: string): Promise<void> {
  const { root, stage } = sandboxDirectoryAt(path);
  await removeTree(root, stage);
  // The remaining tree is shallow: of `root`, only the parts that were moved to the stage are left.
  await removeTree(path, dirname(path));
}

const run = promisify(execFile);

/**
 * Server process that owns a directory, as `<host>.<pid>.<start>`: short enough for a directory's name, and different
 * for a later process with the same pid.
 */
export type Owner = string;

export async function currentOwner(): Promise<Owner> {
  return `${thisHost()}.${process.pid}.${await startOf(process.pid)}`;
}

/**
 * True for a process of this host that has ended. An owner on another host, with which the directory may be shared,
 * cannot be checked and is never gone.
 */
export async function isGone(owner: Owner): Promise<boolean> {
  const [host, pid, start] = owner.split(".");
  return host === thisHost() && start !== (await startOf(Number(pid)));
}

/** Identifies the scope of pids: containers of one host may share a directory but have separate pids. */
function thisHost(): string {
  const processes = process.platform === "linux" ? readlinkSync("/proc/self/ns/pid") : "";
  return digest(hostname() + processes).slice(0, 4);
}

/** Start time of a process as a digest; undefined when there is none. */
async function startOf(pid: number): Promise<string | undefined> {
  try {
    if (process.platform !== "linux")
      return digest((await run("ps", ["-o", "lstart=", "-p", String(pid)])).stdout);
    const stat = await readFile(`/proc/${pid}/stat`, "latin1");
    // The program's name is in parentheses and may contain any character; the 20th field after it is the start.
    const ticks = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
    return digest(`${await readFile("/proc/sys/kernel/random/boot_id", "latin1")}${ticks}`);
  } catch {
    return undefined;
  }
}

function digest(text: string): string {
  return createHash("sha256").update(text.trim()).digest("hex").slice(0, 8);
}
