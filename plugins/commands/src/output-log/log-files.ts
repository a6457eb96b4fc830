import { open, rm, rmdir } from "node:fs/promises";
import { dirname } from "node:path";
import { mkdir } from "node:fs/promises";

/** A file that is written from its beginning to its end. */
export interface LogFile {
  /** @throws Error of the file system, also when not all of it could be written. */
  append(buffers: readonly Uint8Array[]): Promise<void>;
  close(): Promise<void>;
}

/** Everything that changes the files of the log. */
export interface LogFiles {
  /** Makes a file, and its directory, for this user alone. @throws Error of the file system. */
  create(path: string): Promise<LogFile>;
  /** Opens it again to go on at its end. @throws Error of the file system. */
  reopen(path: string): Promise<LogFile>;
  /** Removes a file, and its directory once that is empty. What is gone already is fine. */
  remove(path: string): Promise<void>;
}

/** The file system of this machine. */
export const diskFiles: LogFiles = {
  async create(path) {
    await mkdir(dirname(path), { recursive: true, mode: 0o700 });
    return openForAppend(path, "ax");
  },
  reopen: (path) => openForAppend(path, "a"),
  async remove(path) {
    await rm(path, { force: true });
    await rmdir(dirname(path)).catch((error: unknown) => {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== "ENOTEMPTY" && code !== "EEXIST" && code !== "ENOENT") throw error;
    });
  },
};

async function openForAppend(path: string, flags: "a" | "ax"): Promise<LogFile> {
  const file = await open(path, flags, 0o600);
  return {
    async append(buffers) {
      const { bytesWritten } = await file.writev(buffers);
      let length = 0;
      for (const buffer of buffers) length += buffer.length;
      // A regular file takes less than all only when the disk cannot take more.
      if (bytesWritten < length) throw new Error("ENOSPC: no space left on device, write");
    },
    close: () => file.close(),
  };
}
