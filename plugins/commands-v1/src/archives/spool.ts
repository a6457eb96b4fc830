import { randomUUID } from "node:crypto";
import { type FileHandle, mkdir, open, rm } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";

export interface SpoolOptions {
  /** On the host. */
  readonly directory: () => string;
  /** Most bytes of all files together. */
  readonly maxBytes: number;
}

/** Files on the host for archives that are being checked. */
export class Spool {
  readonly #options: SpoolOptions;
  #bytes = 0;

  constructor(options: SpoolOptions) {
    this.#options = options;
  }

  /** An empty file, which is removed at its disposal. */
  async open(): Promise<SpoolFile> {
    const directory = this.#options.directory();
    await mkdir(directory, { recursive: true, mode: 0o700 });
    const path = join(directory, `${randomUUID()}.tar`);
    let fileBytes = 0;
    const grow = (bytes: number): void => {
      if (this.#bytes + bytes > this.#options.maxBytes) {
        throw new SandboxError("server_busy", "other imports take the server's room for archives");
      }
      this.#bytes += bytes;
      fileBytes += bytes;
    };
    const shrink = (): void => {
      this.#bytes -= fileBytes;
      fileBytes = 0;
    };
    return new SpoolFile(path, await open(path, "wx", 0o600), { grow, shrink });
  }

  /** Removes what an earlier server has left. */
  async clear(): Promise<void> {
    await rm(this.#options.directory(), { recursive: true, force: true });
  }
}

export class SpoolFile implements AsyncDisposable {
  readonly path: string;
  readonly #handle: FileHandle;
  readonly #room: { readonly grow: (bytes: number) => void; readonly shrink: () => void };

  constructor(
    path: string,
    handle: FileHandle,
    room: { readonly grow: (bytes: number) => void; readonly shrink: () => void },
  ) {
    this.path = path;
    this.#handle = handle;
    this.#room = room;
  }

  /** Appends. @throws SandboxError unavailable when the server has no room. */
  async write(data: Uint8Array): Promise<void> {
    this.#room.grow(data.length);
    await this.#handle.writeFile(data).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOSPC" && error.code !== "EDQUOT") throw error;
      throw new SandboxError("store_unavailable", "the server has no room for the archive", { cause: error });
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#handle.close().catch(() => undefined);
    await rm(this.path, { force: true });
    this.#room.shrink();
  }
}
