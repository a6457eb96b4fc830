import { mkdir, open, rmdir, unlink } from "node:fs/promises";
import { dirname } from "node:path";

/** A file that is written from its beginning to its end. */
export interface LogFile {
  /** @throws Error of the file system, also when not all of it could be written. */
  append(bytes: Uint8Array): Promise<void>;
  close(): Promise<void>;
}

/** Everything that changes the files of the log. */
export interface LogFiles {
  /** Makes a file, and its directory, for this user alone. @throws Error of the file system. */
  create(path: string): Promise<LogFile>;
  /** Opens it again to go on at its end. @throws Error of the file system. */
  reopen(path: string): Promise<LogFile>;
  /** Removes a file. What is gone already is fine. @throws Error of the file system. */
  remove(path: string): Promise<void>;
  /** Removes a directory unless there is something in it. @throws Error of the file system. */
  removeDirectory(path: string): Promise<void>;
}

/** The file system of this machine. */
export const diskFiles: LogFiles = {
  async create(path) {
    try {
      return await openForAppend(path, "ax");
    } catch (error) {
      unless("ENOENT")(error);
      await mkdir(dirname(path), { recursive: true, mode: 0o700 });
      return openForAppend(path, "ax");
    }
  },
  reopen: (path) => openForAppend(path, "a"),
  async remove(path) {
    await unlink(path).catch(unless("ENOENT"));
  },
  async removeDirectory(path) {
    await rmdir(path).catch(unless("ENOENT", "ENOTEMPTY", "EEXIST"));
  },
};

async function openForAppend(path: string, flags: "a" | "ax"): Promise<LogFile> {
  const file = await open(path, flags, 0o600);
  return {
    async append(bytes) {
      const { bytesWritten } = await file.write(bytes);
      // A regular file takes less than all only when the disk cannot take more.
      if (bytesWritten < bytes.length) throw new Error("ENOSPC: no space left on device, write");
    },
    close: () => file.close(),
  };
}

/** Passes on any error but these. */
function unless(...codes: readonly string[]): (error: unknown) => void {
  return (error) => {
    if (!codes.includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  };
}
