import { posix } from "node:path";
import { SandboxError } from "@coppice/core";
import type { Files } from "@coppice/core/backend";

/**
 * Where paths lead, links and `..` followed as the sandbox itself would. Keeps what it has seen, so ask
 * one of these about the paths of one moment only.
 */
export class RealPaths {
  readonly #files: Pick<Files, "stat">;
  readonly #followed = new Map<string, string>();

  constructor(files: Pick<Files, "stat">) {
    this.#files = files;
  }

  /** The one path of a directory entry itself: links above it are followed, it is not. */
  async ofEntry(path: string): Promise<string> {
    const names = path.split("/").filter((name) => name !== "" && name !== ".");
    let real = "/";
    for (const [index, name] of names.entries()) {
      if (name === "..") real = posix.dirname(real);
      else {
        const entry = posix.join(real, name);
        real = index === names.length - 1 ? entry : await this.#follow(entry);
      }
    }
    return real;
  }

  /** The one path of what an absolute path stands for. What does not exist stays as it is. */
  async ofTarget(path: string): Promise<string> {
    return this.#follow(await this.ofEntry(path));
  }

  /** @param entry real up to its last name. */
  async #follow(entry: string): Promise<string> {
    let target = this.#followed.get(entry);
    if (target === undefined) {
      try {
        target = (await this.#files.stat(entry)).symlinkTarget ?? entry;
      } catch (error) {
        if (!(error instanceof SandboxError)) throw error;
        target = entry;
      }
      this.#followed.set(entry, target);
    }
    return target;
  }
}
