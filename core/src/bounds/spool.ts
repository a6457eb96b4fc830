import { randomUUID } from "node:crypto";
import { type FileHandle, mkdir, open, rm } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "../kernel/errors.js";
import { Shares, type Tenants } from "./tenants.js";

/** Where and how much a spool writes. */
export interface SpoolOptions {
  /** On the host, for these files alone. */
  readonly directory: () => string;
  /** Most bytes of all files together. */
  readonly maxBytes: number;
  /** Where owners of files are tenants: each has its share of the bytes. */
  readonly tenants?: Tenants;
}

/** Temporary files on the host. They have no name, and so end with the server, however it ends. */
export class Spool {
  readonly #options: SpoolOptions;
  readonly #taken: Shares;

  constructor(options: SpoolOptions) {
    this.#options = options;
    this.#taken = new Shares(options.maxBytes, options.tenants);
  }

  /** An empty file, which is gone with its disposal. @throws Error of the file system. */
  async open(owner = ""): Promise<SpoolFile> {
    const directory = this.#options.directory();
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const path = join(directory, randomUUID());
    const handle = await open(path, "wx+", 0o600);
    try {
      await rm(path);
    } catch (error) {
      await handle.close();
      throw error;
    }
    let fileBytes = 0;
    const grow = (bytes: number): void => {
      if (this.#taken.take(owner, bytes) !== undefined) {
        throw new SandboxError("server_busy", "other requests take the server's room for temporary files");
      }
      fileBytes += bytes;
    };
    const shrink = (): void => {
      this.#taken.give(owner, fileBytes);
      fileBytes = 0;
    };
    return new SpoolFile(handle, { grow, shrink });
  }

  /** Removes names that an earlier server had no time to remove. */
  async clear(): Promise<void> {
    await rm(this.#options.directory(), { recursive: true, force: true });
  }
}

/** Most bytes that are read at once. Divisible by three, for base64. */
const PIECE_BYTES = 384 * 1024;

interface Room {
  readonly grow: (bytes: number) => void;
  readonly shrink: () => void;
}

/** A file of a spool: written to its end, then read as often as wanted. */
export class SpoolFile implements AsyncDisposable {
  readonly #handle: FileHandle;
  readonly #room: Room;
  #bytes = 0;

  constructor(handle: FileHandle, room: Room) {
    this.#handle = handle;
    this.#room = room;
  }

  /** Appends all of it, or nothing. One call at a time. @throws SandboxError unavailable when the server has no room. */
  async write(data: Uint8Array): Promise<void> {
    this.#room.grow(data.length);
    try {
      for (let done = 0; done < data.length;) {
        const { bytesWritten } = await this.#handle.write(data, done, data.length - done, this.#bytes + done);
        done += bytesWritten;
      }
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code !== "ENOSPC" && code !== "EDQUOT") throw error;
      throw new SandboxError("store_unavailable", "the server has no room for a temporary file", {
        cause: error,
      });
    }
    this.#bytes += data.length;
  }

  /** Everything that was written, in pieces of one buffer: each is overwritten by the next. */
  async *pieces(): AsyncGenerator<Buffer> {
    const buffer = Buffer.allocUnsafeSlow(Math.min(PIECE_BYTES, this.#bytes));
    for (let at = 0; at < this.#bytes;) {
      const { bytesRead } = await this.#handle.read(buffer, 0, Math.min(buffer.length, this.#bytes - at), at);
      if (bytesRead === 0) throw new Error("a temporary file was cut");
      yield buffer.subarray(0, bytesRead);
      at += bytesRead;
    }
  }

  /** Waits for a write or a read that goes on. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.close().catch(() => undefined);
    this.#room.shrink();
  }
}
