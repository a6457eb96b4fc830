import { posix } from "node:path";
import { SandboxError } from "@coppice/core";
import type { Files } from "@coppice/core/backend";

/**
 * Resolves links and `..` as the sandbox itself would. It caches lookups, so use one instance for the paths of one
 * moment only.
 */
export class RealPaths {
  readonly #files: Pick<Files, "stat">;
  readonly #followed = new Map<string, string>();

  constructor(files: Pick<Files, "stat">) {
    this.#files = files;
  }

  /** The real path of a directory entry: links above it are resolved, a final link is not. */
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

  /** The real path of a target. A missing one stays as it is. */
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
