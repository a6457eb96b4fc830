import { createHash } from "node:crypto";
import { createReadStream, createWriteStream } from "node:fs";
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createGzip } from "node:zlib";
import { pack } from "tar-stream";
import type { FolderFile } from "./folder-files.js";

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
