import { posix } from "node:path";
import { SandboxError } from "@coppice/core";
import type { Headers } from "tar-stream";

const TYPES = ["file", "contiguous-file", "directory", "symlink", "link"];
const MAX_NAME_BYTES = 4095;

/**
 * Checks that the entries of an archive stay below the directory that it is unpacked in, also when their links are
 * followed: no absolute name, no `..`, no entry behind a link of the archive, no link out, no device, no pipe.
 */
export class SafeEntries {
  readonly #maxEntries: number;
  readonly #links = new Set<string>();
  /** Directories that have entries, which no link may replace. */
  readonly #parents = new Set<string>();
  #count = 0;

  constructor(maxEntries: number) {
    this.#maxEntries = maxEntries;
  }

  /** @throws SandboxError invalid_argument with the name of an entry that may not be unpacked. */
  check({ name, type, linkname }: Headers): void {
    this.#count += 1;
    if (this.#count > this.#maxEntries) throw unsafe(`it has more than ${this.#maxEntries} entries`);
    const told = JSON.stringify(name.slice(0, 200));
    if (!TYPES.includes(type ?? "")) throw unsafe(`${told} is no file, directory or link`);
    const path = this.#inside(name);
    if (path === undefined) throw unsafe(`${told} leaves the directory`);
    if (type !== "symlink" && type !== "link") return;
    if (this.#parents.has(path)) throw unsafe(`${told} replaces a directory`);
    const target = linkname ?? "";
    if (type === "link" ? this.#inside(target) === undefined : !isInside(path, target)) {
      throw unsafe(`${told} links out of the directory`);
    }
    // A hard link to a symbolic one is another symbolic one.
    this.#links.add(path);
  }

  /** The plain form of a name; undefined when it leaves the directory or passes a link. */
  #inside(name: string): string | undefined {
    if (name.startsWith("/") || name.includes("\0") || name.split("/").includes("..")) return undefined;
    if (Buffer.byteLength(name) > MAX_NAME_BYTES) return undefined;
    const path = posix.normalize(name).replace(/\/+$/, "");
    for (let above = posix.dirname(path); above !== "."; above = posix.dirname(above)) {
      if (this.#links.has(above)) return undefined;
      this.#parents.add(above);
    }
    return path;
  }
}

/**
 * True when the target of a symbolic link is below the directory. `..` may only stand at its beginning: behind another
 * link it would lead from that link's target.
 */
function isInside(path: string, target: string): boolean {
  if (target === "" || target.startsWith("/") || target.includes("\0")) return false;
  const names = target.split("/").filter((name) => name !== "" && name !== ".");
  const ups = names.findIndex((name) => name !== "..");
  if (ups !== -1 && names.slice(ups).includes("..")) return false;
  const depth = path.split("/").length - 1;
  return (ups === -1 ? names.length : ups) <= depth;
}

function unsafe(problem: string): SandboxError {
  return new SandboxError("archive_unsafe", `the archive is refused: ${problem}`);
}
