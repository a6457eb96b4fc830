import { posix } from "node:path";
import type { FileChange, FileInfo, Files, OpenFile, WriteOptions } from "./files.js";

/** The files below a directory, by paths that begin there. */
export class FilesBelow implements Omit<Files, "watch" | "hostPath"> {
  readonly #files: Files;
  readonly #directory: string;
  readonly change?: NonNullable<Files["change"]>;

  /** @param directory absolute, and not `/`. */
  constructor(files: Files, directory: string) {
    this.#files = files;
    this.#directory = directory;
    const change = files.change?.bind(files);
    if (change === undefined) return;
    this.change = async (path: string, wanted: FileChange) => this.#out(await change(this.#in(path), wanted));
  }

  async stat(path: string): Promise<FileInfo> {
    return this.#out(await this.#files.stat(this.#in(path)));
  }

  async *list(path: string, depth: number): AsyncIterable<FileInfo> {
    for await (const info of this.#files.list(this.#in(path), depth)) yield this.#out(info);
  }

  async read(path: string): Promise<OpenFile> {
    const file = await this.#files.read(this.#in(path));
    return {
      info: this.#out(file.info),
      content: (options) => file.content(options),
      [Symbol.asyncDispose]: () => file[Symbol.asyncDispose](),
    };
  }

  async write(path: string, data: AsyncIterable<Uint8Array>, options?: WriteOptions): Promise<FileInfo> {
    return this.#out(await this.#files.write(this.#in(path), data, options));
  }

  async makeDir(path: string, options?: Pick<WriteOptions, "user">): Promise<FileInfo> {
    return this.#out(await this.#files.makeDir(this.#in(path), options));
  }

  async move(source: string, destination: string, options?: Pick<WriteOptions, "user">): Promise<FileInfo> {
    return this.#out(await this.#files.move(this.#in(source), this.#in(destination), options));
  }

  async remove(path: string): Promise<void> {
    await this.#files.remove(this.#in(path));
  }

  /** No `..` leads above the directory; links in it are resolved by the underlying files. */
  #in(path: string): string {
    return posix.join(this.#directory, posix.resolve("/", path));
  }

  #out(info: FileInfo): FileInfo {
    const path = this.#shown(info.path);
    const { symlinkTarget } = info;
    return {
      ...info,
      path,
      name: posix.basename(path),
      ...(symlinkTarget !== undefined && { symlinkTarget: this.#shown(symlinkTarget) }),
    };
  }

  #shown(path: string): string {
    if (path === this.#directory) return "/";
    return path.startsWith(`${this.#directory}/`) ? path.slice(this.#directory.length) : path;
  }
}
