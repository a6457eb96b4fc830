import { lstat, opendir } from "node:fs/promises";
import { join } from "node:path";

const BLOCK_BYTES = 512;

/** Bytes that a tree takes up on the disk, where each file counts once. Looks at so many entries at most. */
export async function diskUsage(directory: string, entriesLimit: number): Promise<number> {
  const pending = [directory];
  const linked = new Set<number>();
  let bytes = 0;
  let left = entriesLimit;
  for (let path = pending.pop(); path !== undefined && left > 0; path = pending.pop()) {
    // What goes away meanwhile takes up nothing.
    const entries = await opendir(path).catch(() => undefined);
    if (entries === undefined) continue;
    for await (const entry of entries) {
      if (left-- <= 0) break;
      const each = join(path, entry.name);
      if (entry.isDirectory()) pending.push(each);
      const found = await lstat(each).catch(() => undefined);
      if (found === undefined || (found.nlink > 1 && found.isFile() && linked.has(found.ino))) continue;
      if (found.nlink > 1 && found.isFile()) linked.add(found.ino);
      bytes += found.blocks * BLOCK_BYTES;
    }
  }
  return bytes;
}
