import { SandboxError } from "@coppice/core";
import type { Files } from "@coppice/core/backend";

interface DiskQuotaOptions {
  readonly measure: () => Promise<number>;
  readonly limitBytes: number;
  readonly maximumAgeMs: number;
}

/**
 * Disk usage of a sandbox: the last measurement plus bytes written through the server since. Writes of programs inside
 * count at the next measurement.
 */
export class DiskQuota {
  readonly #options: DiskQuotaOptions;
  limitBytes: number;
  #usedBytes = 0;
  /** Bytes of unfinished writes. A file has no name before it is complete, so measurements miss it. */
  #unfinishedBytes = 0;
  #measuredAtMs = -Infinity;
  #measuring: Promise<number> | undefined;

  constructor(options: DiskQuotaOptions) {
    this.#options = options;
    this.limitBytes = options.limitBytes;
  }

  async measure(): Promise<number> {
    this.#measuring ??= this.#measure().finally(() => (this.#measuring = undefined));
    return this.#measuring;
  }

  /** The last measurement is still true. */
  confirm(): void {
    this.#measuredAtMs = performance.now();
  }

  /** Passes data on while there is room. @throws SandboxError resource_exhausted */
  async *admit(data: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
    if (this.#isOld) await this.measure();
    let admittedBytes = 0;
    try {
      for await (const chunk of data) {
        admittedBytes += chunk.byteLength;
        this.#unfinishedBytes += chunk.byteLength;
        this.#usedBytes += chunk.byteLength;
        if (this.#usedBytes > this.limitBytes) await this.#requireRoom();
        yield chunk;
      }
    } finally {
      this.#unfinishedBytes -= admittedBytes;
    }
  }

  /** Runs a write of so many bytes while there is room for them. @throws SandboxError resource_exhausted */
  async admitWhole<T>(bytes: number, write: () => Promise<T>): Promise<T> {
    if (this.#isOld) await this.measure();
    this.#unfinishedBytes += bytes;
    this.#usedBytes += bytes;
    try {
      if (this.#usedBytes > this.limitBytes) await this.#requireRoom();
      return await write();
    } finally {
      this.#unfinishedBytes -= bytes;
    }
  }

  get #isOld(): boolean {
    return performance.now() - this.#measuredAtMs > this.#options.maximumAgeMs;
  }

  async #requireRoom(): Promise<void> {
    // Files removed since the last measurement make room.
    if ((await this.measure()) > this.limitBytes)
      throw new SandboxError("disk_full", "the disk of the sandbox is full", { shortage: "space" });
  }

  async #measure(): Promise<number> {
    this.#usedBytes = (await this.#options.measure()) + this.#unfinishedBytes;
    this.#measuredAtMs = performance.now();
    return this.#usedBytes;
  }
}

export function filesWithQuota(files: Files, quota: DiskQuota): Files {
  const writeWhole = files.writeWhole?.bind(files);
  return {
    stat: (path) => files.stat(path),
    list: (path, depth) => files.list(path, depth),
    read: (path) => files.read(path),
    write: (path, data, options) => files.write(path, quota.admit(data), options),
    ...(writeWhole && {
      writeWhole: (path, content, options) =>
        quota.admitWhole(content.byteLength, () => writeWhole(path, content, options)),
    }),
    makeDir: (path, options) => files.makeDir(path, options),
    move: (source, destination, options) => files.move(source, destination, options),
    remove: (path) => files.remove(path),
    ...(files.change && { change: files.change.bind(files) }),
    ...(files.watch && { watch: files.watch.bind(files) }),
  };
}
