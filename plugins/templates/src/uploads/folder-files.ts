import { lstat, readdir, readFile, readlink, stat } from "node:fs/promises";
import { join, posix } from "node:path";
import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import { ignoring } from "@coppice/core";
import dockerignore, { type Ignore } from "@balena/dockerignore";
import { pack } from "tar-stream";

/** A file, directory or link of a folder. */
interface FolderFile {
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

/** An archive of files for a COPY step. */
export interface PackedFolder {
  readonly path: string;
  readonly bytes: number;
  /** Of what the step makes of it, in hexadecimal digits: times and owners on this machine do not count. */
  readonly hash: string;
}

/** Files of a folder for a COPY step. */
export interface FilesToPack {
  readonly folder: string;
  readonly files: readonly FolderFile[];
  /** What else decides on the files of the step. */
  readonly of: readonly string[];
}

/** The hash that `packFolder` returns for files, without an archive. */
export async function hashFolder({ folder, files, of }: FilesToPack): Promise<string> {
  const hash = createHash("sha256").update(JSON.stringify(of));
  for (const { path: name, type, mode, size, link } of files) {
    hash.update(JSON.stringify([name, type, mode, size, link]));
    if (type !== "file") continue;
    for await (const chunk of createReadStream(join(folder, name))) hash.update(chunk as Buffer);
  }
  return hash.digest("hex");
}

/**
 * Writes files of a folder into a compressed tar file.
 * @throws Error for a file that changes meanwhile.
 */
export async function packFolder(
  { folder, files, of }: FilesToPack,
  path: string,
  signal: AbortSignal,
): Promise<PackedFolder> {
  const hash = createHash("sha256").update(JSON.stringify(of));
  const archive = pack();
  const write = async (): Promise<void> => {
    for (const { path: name, type, mode, size, modifiedAt, link } of files) {
      hash.update(JSON.stringify([name, type, mode, size, link]));
      const header = { name, type, mode, mtime: modifiedAt, ...(link !== undefined && { linkname: link }) };
      if (type !== "file") {
        archive.entry(header);
        continue;
      }
      const entry = archive.entry({ ...header, size });
      await pipeline(
        createReadStream(join(folder, name)),
        async function* (chunks: AsyncIterable<Buffer>) {
          for await (const chunk of chunks) {
            hash.update(chunk);
            yield chunk;
          }
        },
        entry,
        { signal },
      );
    }
    archive.finalize();
  };
  await Promise.all([
    pipeline(archive, createGzip(), createWriteStream(path, { mode: 0o600 }), { signal }),
    write().catch((error: unknown) => {
      archive.destroy(error as Error);
      throw error;
    }),
  ]);
  return { path, bytes: (await stat(path)).size, hash: hash.digest("hex") };
}
