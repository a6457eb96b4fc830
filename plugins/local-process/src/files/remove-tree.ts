import { randomUUID } from "node:crypto";
import { chmodSync } from "node:fs";
import { mkdir, readdir, rename, rmdir, unlink } from "node:fs/promises";
import { join } from "node:path";
import { type Held, codeOf, holdIfPresent } from "./walk.js";

/** Maximum of directories held at once; deeper ones are moved up first. */
const LEVELS_LIMIT = 64;
const AT_ONCE = 16;
/** Maximum of passes over a directory that another process fills. */
const PASSES_LIMIT = 1_000;

/**
 * Removes a file or a tree of any depth, even while processes rearrange it. Follows no links. A missing one is fine.
 * @param path on the host; its parent is held or out of reach of the sandbox.
 * @param stage a directory of the same file system, out of reach of the sandbox.
 */
export async function removeTree(path: string, stage: string): Promise<void> {
  const spill = join(stage, `removed-${randomUUID()}`);
  await removeEntry(path, spill, 0);
  using spilled = holdIfPresent(spill);
  if (spilled !== undefined) await removeTree(spill, stage);
}

async function removeEntry(path: string | Buffer, spill: string, level: number): Promise<void> {
  using held = holdIfPresent(path);
  if (held === undefined) return;
  if (!held.stats.isDirectory()) return await removeFile(path);
  if (level >= LEVELS_LIMIT) return await moveAway(path, spill);
  for (let pass = 0; ; pass++) {
    await empty(held, spill, level);
    try {
      return await rmdir(path);
    } catch (error) {
      if (codeOf(error) === "ENOENT") return;
      if (!["ENOTEMPTY", "EEXIST"].includes(codeOf(error) ?? "") || pass >= PASSES_LIMIT) throw error;
    }
  }
}

async function empty(directory: Held, spill: string, level: number): Promise<void> {
  // Its owner may have removed all permission to change it.
  if ((directory.stats.mode & 0o700) !== 0o700) chmodSync(directory.path, 0o700);
  // latin1 preserves names that are not UTF-8.
  const entries = await readdir(directory.path, { withFileTypes: true, encoding: "latin1" });
  const paths = (names: typeof entries): Buffer[] =>
    names.map(({ name }) => Buffer.concat([Buffer.from(`${directory.path}/`), Buffer.from(name, "latin1")]));
  const files = paths(entries.filter((entry) => !entry.isDirectory()));
  while (files.length > 0) await Promise.all(files.splice(0, AT_ONCE).map(removeFile));
  for (const path of paths(entries.filter((entry) => entry.isDirectory())))
    await removeEntry(path, spill, level + 1);
}

async function removeFile(path: string | Buffer): Promise<void> {
  try {
    await unlink(path);
  } catch (error) {
    // EISDIR: a directory took its place; the next pass removes it.
    if (!["ENOENT", "EISDIR"].includes(codeOf(error) ?? "")) throw error;
  }
}

async function moveAway(path: string | Buffer, spill: string): Promise<void> {
  await mkdir(spill, { recursive: true, mode: 0o700 });
  try {
    await rename(path, join(spill, randomUUID()));
  } catch (error) {
    if (codeOf(error) !== "ENOENT") throw error;
  }
}
