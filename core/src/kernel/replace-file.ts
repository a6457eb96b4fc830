import { open, rename, rm } from "node:fs/promises";

export interface ReplacedFile {
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
