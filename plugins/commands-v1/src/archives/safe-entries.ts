import { posix } from "node:path";
import { type TarHeader, unsafe } from "./tar-blocks.js";

const MAX_NAME_BYTES = 4095;
/** Names that are kept, to be compared with those of later entries. */
const MAX_NAMES_BYTES = 32 * 2 ** 20;

/**
 * Checks that the entries of an archive stay below the directory that it is unpacked in, also when their links are
 * followed: no absolute name, no `..`, no entry behind a link of the archive, no link out, no device, no pipe.
 */
export class SafeEntries {
  readonly #maxEntries: number;
  /** Targets of symbolic links by their paths; undefined for hard links to what is none. */
  readonly #links = new Map<string, string | undefined>();
  /** Directories that have entries, which no link may replace. */
  readonly #parents = new Set<string>();
  #count = 0;
  #nameBytes = 0;

  constructor(maxEntries: number) {
    this.#maxEntries = maxEntries;
  }

  /** @throws SandboxError invalid_argument with the name of an entry that may not be unpacked. */
  check({ name, type, linkname }: Pick<TarHeader, "name" | "type" | "linkname">): void {
    this.#count += 1;
    this.#checkCount();
    this.#nameBytes += Buffer.byteLength(name);
    if (this.#nameBytes > MAX_NAMES_BYTES) throw unsafe("its names are too long together");
    const told = JSON.stringify(name.slice(0, 200));
    const path = this.#inside(name);
    if (path === undefined) throw unsafe(`${told} leaves the directory`);
    if (type !== "symlink" && type !== "link") return;
    if (this.#parents.has(path)) throw unsafe(`${told} replaces a directory`);
    this.#nameBytes += Buffer.byteLength(linkname);
    const linked = type === "link" ? this.#inside(linkname) : undefined;
    const isOut = type === "link" && linked === undefined;
    // A hard link to a symbolic one is another symbolic one, which leads elsewhere from its own place.
    const target = type === "link" ? this.#links.get(linked ?? "") : linkname;
    if (isOut || (target !== undefined && !isInside(path, target))) {
      throw unsafe(`${told} links out of the directory`);
    }
    // A symbolic link that stood here before counts on, for the case that a hard one cannot replace it.
    this.#links.set(path, target ?? this.#links.get(path));
  }

  /** The plain form of a name; undefined when it leaves the directory or passes a link. */
  #inside(name: string): string | undefined {
    if (name === "" || name.startsWith("/") || name.includes("\0") || name.split("/").includes(".."))
      return undefined;
    if (Buffer.byteLength(name) > MAX_NAME_BYTES) return undefined;
    const path = posix.normalize(name).replace(/\/+$/, "");
    for (let above = posix.dirname(path); above !== "."; above = posix.dirname(above)) {
      if (this.#links.has(above)) return undefined;
      // Then those above it are known, too.
      if (this.#parents.has(above)) break;
      this.#parents.add(above);
      this.#checkCount();
    }
    return path;
  }

  /** Directories that are only in the names of entries count as entries. */
  #checkCount(): void {
    if (Math.max(this.#count, this.#parents.size) <= this.#maxEntries) return;
    throw unsafe(`it has more than ${this.#maxEntries} entries`);
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
