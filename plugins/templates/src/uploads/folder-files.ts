import { lstat, readdir, readFile, readlink } from "node:fs/promises";
import { join, posix } from "node:path";
import { ignoring } from "@coppice/core";
import dockerignore, { type Ignore } from "@balena/dockerignore";

/** A file, directory or link of a folder. */
export interface FolderFile {
  /** Relative to the folder, with `/`. */
  readonly path: string;
  readonly type: "file" | "directory" | "symlink";
  /** Permission bits. */
  readonly mode: number;
  /** Of a file. */
  readonly size: number;
  readonly modifiedAt: Date;
  /** Target of a link. */
  readonly link: string | undefined;
}

const WILD = /[*?[]/;

/** Reads the rules of `.dockerignore`, if the folder has them. */
export async function readIgnored(folder: string): Promise<Ignore> {
  const text = await readFile(join(folder, ".dockerignore"), "utf8").catch(ignoring("ENOENT"));
  return dockerignore.default().add(text?.split(/\r?\n/) ?? []);
}

/**
 * Finds what a source of COPY means: a path of the folder with all below it, or everything that matches a pattern.
 * @param source relative to the folder. @returns in order of their paths.
 */
export async function findFiles(
  folder: string,
  source: string,
  ignored: Pick<Ignore, "ignores">,
): Promise<readonly FolderFile[]> {
  const parts = source.split("/");
  const wildAt = parts.findIndex((part) => WILD.test(part));
  const start = wildAt < 0 ? source : parts.slice(0, wildAt).join("/") || ".";
  const pattern = wildAt < 0 ? undefined : patternOf(source);
  const found: FolderFile[] = [];

  const visit = async (path: string, isMatched: boolean): Promise<void> => {
    const file = await describe(folder, path);
    if (file === undefined) return;
    const isIn = isMatched || pattern?.test(path) === true;
    // Rules may name a file below an ignored directory again.
    if (isIn && path !== "." && !ignored.ignores(path)) found.push(file);
    if (file.type !== "directory") return;
    for (const name of (await readdir(join(folder, path))).toSorted())
      await visit(posix.join(path, name), isIn);
  };
  await visit(start, pattern === undefined);
  return found;
}

/** Undefined for a missing path, a socket and other files that no archive has. */
async function describe(folder: string, path: string): Promise<FolderFile | undefined> {
  const place = join(folder, path);
  const stats = await lstat(place).catch((error: unknown) => {
    if (["ENOENT", "ENOTDIR"].includes((error as NodeJS.ErrnoException).code ?? "")) return undefined;
    throw error;
  });
  if (stats === undefined) return undefined;
  const facts = { path, mode: stats.mode & 0o7777, size: 0, modifiedAt: stats.mtime, link: undefined };
  if (stats.isFile()) return { ...facts, type: "file", size: stats.size };
  if (stats.isDirectory()) return { ...facts, type: "directory" };
  return stats.isSymbolicLink() ? { ...facts, type: "symlink", link: await readlink(place) } : undefined;
}

/** The pattern of a whole path, as Docker reads it, and `**` for any directories. */
function patternOf(source: string): RegExp {
  const text = source.replaceAll(/\*\*\/?|[*?]|\[[^\]]+\]|[^*?[]/g, (part) => {
    if (part === "**/") return "(?:.*/)?";
    if (part === "**") return ".*";
    if (part === "*") return "[^/]*";
    if (part === "?") return "[^/]";
    return part.length > 1 ? part : part.replace(/[\\^$.|+(){}\]]/, String.raw`\$&`);
  });
  return new RegExp(`^${text}$`);
}
