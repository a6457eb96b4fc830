import { randomBytes } from "node:crypto";
import { constants, existsSync, mkdirSync, closeSync, openSync, readSync } from "node:fs";
import { link, open, rename, rm, writeFile } from "node:fs/promises";
import { ignoring } from "./errors.js";
import { dirname } from "node:path";

const USED_BY_OTHERS = 0o077;
const MAX_BYTES = 1024;

interface ReplacedFile {
  readonly mode: number;
  /** True for what has to survive a power cut; costs a write to the disk. */
  readonly flush?: boolean;
}

/**
 * Writes a file beside the old one, `<path>.new`, and renames it: readers, and the next process after a crash, see the
 * old contents or the new. One at a time for a path.
 * @throws Error of the file system, after which nothing has changed.
 */
export async function replaceFile(
  path: string,
  contents: string | Uint8Array,
  { mode, flush = false }: ReplacedFile,
): Promise<void> {
  const unfinished = `${path}.new`;
  try {
    await writeNew(unfinished, contents, { mode, flush });
    await rename(unfinished, path);
  } catch (error) {
    await rm(unfinished, { force: true });
    throw error;
  }
}

async function writeNew(
  path: string,
  contents: string | Uint8Array,
  { mode, flush }: Required<ReplacedFile>,
): Promise<void> {
  await using file = await open(path, "w", mode);
  // The mode above applies to a file that no crash has left.
  await file.chmod(mode);
  await file.writeFile(contents);
  if (flush) await file.sync();
}

interface KeptFile {
  readonly contents: Buffer;
  /** True when other users could use it until now. */
  readonly wasOpen: boolean;
}

/**
 * The secret in a file of this user alone, which `make` fills when it is missing. Concurrent callers, also in other
 * processes, get the same one.
 * @throws Error when it is no small file of this user.
 */
export async function keptFile(path: string, make: () => string | Uint8Array): Promise<KeptFile> {
  return (await readKept(path).catch(ignoring("ENOENT"))) ?? (await makeKept(path, make()));
}

/** Creates the file atomically, without replacing another: a crash leaves at most an unused temporary file. */
async function makeKept(path: string, contents: string | Uint8Array): Promise<KeptFile> {
  const draft = `${path}.${randomBytes(6).toString("hex")}`;
  try {
    await writeFile(draft, contents, { flag: "wx", mode: 0o600, flush: true });
    await link(draft, path).catch(ignoring("EEXIST"));
  } finally {
    await rm(draft, { force: true });
  }
  return readKept(path);
}

async function readKept(path: string): Promise<KeptFile> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const stats = await file.stat();
  if (!stats.isFile() || stats.size > MAX_BYTES) throw new Error(`it is no file of a key: ${path}`);
  const wasOpen = (stats.mode & USED_BY_OTHERS) !== 0;
  if (wasOpen) await file.chmod(0o600);
  return { contents: await file.readFile(), wasOpen };
}

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

const piece = Buffer.alloc(4096);

/**
 * The beginning of a file of the kernel, of 4 KiB. The kernel has it in memory: a thread of the pool would cost ten times as
 * much. Undefined when it is missing.
 */
export function readAtOnce(path: string): string | undefined {
  let descriptor: number | undefined;
  try {
    descriptor = openSync(path, "r");
    return piece.toString("latin1", 0, readSync(descriptor, piece));
  } catch {
    return undefined;
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}
