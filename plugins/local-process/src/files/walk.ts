import {
  close,
  closeSync,
  constants,
  fstatSync,
  lstatSync,
  mkdirSync,
  openSync,
  readlinkSync,
  chmodSync,
  type Stats,
} from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { SandboxError, fileSystemError } from "@coppice/core/backend";

/** Of Linux; Node has no constant for it. Opens any entry for inspection, without side effects. */
const O_PATH = 0o10000000;
const LARGE_BYTES = 16 * 2 ** 20;
/** Limit of Go's resolver; a kernel stops after 40. */
const LINKS_LIMIT = 255;
/** Maximum of path components, links included: bounds the time of one walk. */
const STEPS_LIMIT = 2_048;
const PATH_LIMIT = 4_096;
/** False where a path can be replaced by a link while it is used. */
export const CAN_HOLD = process.platform === "linux";

/** Failure to resolve a path; `code` is the errno that the kernel would give. */
export class WalkError extends Error {
  override readonly name = "WalkError";

  constructor(
    readonly code: "ENOENT" | "ENOTDIR" | "ELOOP" | "ENAMETOOLONG" | "EINVAL",
    /** Last resolved path, inside the sandbox. */
    readonly at: string,
  ) {
    super(`${code}: ${at}`);
  }
}

/**
 * A held entry of the file system. On Linux its inode is open (O_PATH) and `path` goes through that descriptor, so no
 * link can replace it. Elsewhere it is only a path, which a process of the sandbox can race.
 */
export interface Held extends Disposable {
  /** On the host. Stands for the entry in every call but unlink, rmdir and rename. */
  readonly path: string;
  readonly stats: Stats;
}

/** True when the kernel takes milliseconds to free its cached pages. */
export function isLargeFile(stats: Stats): boolean {
  return stats.isFile() && stats.size >= LARGE_BYTES;
}

/** Holds an entry without following it. @throws errno errors of open and lstat. */
export function hold(path: string | Buffer): Held {
  if (!CAN_HOLD) return { path: path.toString(), stats: lstatSync(path), [Symbol.dispose]: () => undefined };
  const descriptor = openSync(path, O_PATH | constants.O_NOFOLLOW);
  const stats = fstatSync(descriptor);
  let isOpen = true;
  return {
    path: `/proc/self/fd/${descriptor}`,
    stats,
    [Symbol.dispose]() {
      // The last close of a removed file waits until the kernel has freed its cached pages.
      if (isOpen && isLargeFile(stats)) close(descriptor, () => undefined);
      else if (isOpen) closeSync(descriptor);
      isOpen = false;
    },
  };
}

/**
 * Path of a held entry for other processes of this account, valid while it is held. `/proc/<pid>/fd` is open to
 * processes that may read the memory of that one, and leads to the inode, not to a name.
 */
export function pathForOthers(held: Held): string {
  return CAN_HOLD ? held.path.replace("/proc/self/", `/proc/${process.pid}/`) : held.path;
}

/** Opens the held file itself. Never blocks, as opening a pipe would. */
export function openHeld(held: Held, flags: number): Promise<FileHandle> {
  return open(held.path, flags | reopening());
}

/** As `openHeld`, synchronously. The caller closes the descriptor. */
export function openHeldSync(held: Held, flags: number): number {
  return openSync(held.path, flags | reopening());
}

function reopening(): number {
  // With descriptors, the path of a held entry is itself a link.
  return constants.O_NONBLOCK | (CAN_HOLD ? 0 : constants.O_NOFOLLOW);
}

/** Target of a path: a held directory, and a name in it, which may be free. */
export interface Place extends Disposable {
  /** Host path of the entry, through the held directory. */
  readonly path: string;
  readonly entry: Held | undefined;
  /** Path inside the sandbox, without links. */
  readonly resolved: string;
}

export interface ResolveOptions {
  /** Follow a link in the last component, too. */
  readonly follow: boolean;
  /** Create missing parent directories (0755). */
  readonly makeParents?: boolean;
}

interface Step {
  readonly name: string;
  readonly held: Held;
}

/**
 * A tree of the host that is `/` for the paths it resolves: `..` and links, absolute ones included, stay inside.
 * Synchronous, because the calls take less time than a thread switch. Only processes of the sandbox can change the tree
 * between calls, and they cannot lead out.
 */
export class Tree implements Disposable {
  readonly #root: string;
  readonly #heldRoot: Held;

  /** @param root absolute path on the host, without links. */
  constructor(root: string) {
    this.#root = root;
    this.#heldRoot = hold(root);
  }

  /**
   * Resolves a path. A path that begins with the tree's own host path, as processes see it, means the same file as the
   * rest of it.
   * @throws WalkError, and errno errors of its calls.
   */
  resolve(path: string, options: ResolveOptions): Place {
    if (Buffer.byteLength(path) > PATH_LIMIT) throw new WalkError("ENAMETOOLONG", `${path.slice(0, 64)}…`);
    if (path.includes("\0")) throw new WalkError("EINVAL", path.replaceAll("\0", "\\0"));
    const above: Step[] = [];
    try {
      return this.#walk(this.#components(path), above, { path, ...options });
    } finally {
      for (const step of above) step.held[Symbol.dispose]();
    }
  }

  [Symbol.dispose](): void {
    this.#heldRoot[Symbol.dispose]();
  }

  #components(path: string): string[] {
    const isHostPath = path === this.#root || path.startsWith(`${this.#root}/`);
    const inside = isHostPath ? path.slice(this.#root.length) : path;
    return inside.split("/").filter((name) => name !== "" && name !== ".");
  }

  /** @param above parent directories, outermost first; the caller disposes of them. */
  #walk(names: string[], above: Step[], options: ResolveOptions & { readonly path: string }): Place {
    const pending = names.toReversed();
    let links = 0;
    for (let steps = 0; ; steps++) {
      if (steps > STEPS_LIMIT) throw new WalkError("ENAMETOOLONG", `${options.path.slice(0, 64)}…`);
      const name = pending.pop();
      if (name === undefined) return this.#placeOfDirectory(above);
      if (name === "..") {
        above.pop()?.held[Symbol.dispose]();
        continue;
      }
      const directory = above.at(-1)?.held ?? this.#heldRoot;
      const path = `${directory.path}/${name}`;
      const resolved = `/${[...above.map((step) => step.name), name].join("/")}`;
      const isLast = pending.length === 0;
      const held = this.#holdOrMake(path, !isLast && options.makeParents === true);
      if (held === undefined) {
        if (!isLast) throw new WalkError("ENOENT", resolved);
        return place({ path, resolved, entry: undefined }, above.pop()?.held);
      }
      if (held.stats.isSymbolicLink() && (!isLast || options.follow)) {
        held[Symbol.dispose]();
        if (++links > LINKS_LIMIT) throw new WalkError("ELOOP", options.path);
        const target = readLink(path);
        if (target === undefined) {
          // No longer a link: a process swaps entries meanwhile.
          pending.push(name);
          continue;
        }
        if (target.startsWith("/")) for (const step of above.splice(0)) step.held[Symbol.dispose]();
        pending.push(...this.#components(target).reverse());
        continue;
      }
      if (isLast) return place({ path, resolved, entry: held }, above.pop()?.held);
      if (!held.stats.isDirectory()) {
        held[Symbol.dispose]();
        throw new WalkError("ENOTDIR", resolved);
      }
      above.push({ name, held });
    }
  }

  #placeOfDirectory(above: Step[]): Place {
    const names = above.map((step) => step.name);
    const held = above.pop()?.held;
    const directory = held ?? this.#heldRoot;
    return place({
      // `..` or a link led to this directory, so its name in the parent is unknown.
      path: `${directory.path}/.`,
      resolved: `/${names.join("/")}`,
      entry: held ?? { ...this.#heldRoot, [Symbol.dispose]: () => undefined },
    });
  }

  #holdOrMake(path: string, make: boolean): Held | undefined {
    const held = holdIfPresent(path);
    if (held !== undefined || !make) return held;
    makeDirectory(path);
    return holdIfPresent(path);
  }
}

function place(found: Omit<Place, typeof Symbol.dispose>, directory?: Held): Place {
  return {
    ...found,
    [Symbol.dispose]() {
      found.entry?.[Symbol.dispose]();
      directory?.[Symbol.dispose]();
    },
  };
}

/** Creates one directory with 0755, independent of the umask. An existing one is fine. */
export function makeDirectory(path: string): void {
  try {
    mkdirSync(path, 0o755);
  } catch (error) {
    if (codeOf(error) === "EEXIST") return;
    throw error;
  }
  using held = holdIfPresent(path);
  if (held?.stats.isDirectory() && (held.stats.mode & 0o777) !== 0o755) chmodSync(held.path, 0o755);
}

export function holdIfPresent(path: string | Buffer): Held | undefined {
  try {
    return hold(path);
  } catch (error) {
    if (codeOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

function readLink(path: string): string | undefined {
  try {
    return readlinkSync(path);
  } catch (error) {
    if (codeOf(error) === "EINVAL" || codeOf(error) === "ENOENT") return undefined;
    throw error;
  }
}

export function codeOf(error: unknown): string | undefined {
  return error instanceof Error && "code" in error ? String(error.code) : undefined;
}

/**
 * Translates a failed call for the client, with the message of envd: `lstat /x: no such file or directory`. Returns
 * errors without an errno, such as those of an upload's source, unchanged.
 */
export function fileError(error: unknown, operation: string, path: string): unknown {
  if (error instanceof SandboxError) return error;
  const code = codeOf(error);
  if (code === undefined) return error;
  if (code === "ENOTDIR" && error instanceof WalkError && error.at !== path)
    return new SandboxError("path_is_file", `path is a file: ${error.at}`, { cause: error });
  return fileSystemError({ errno: code, operation, path, cause: error }) ?? error;
}

/** Error with the client's path instead of the one that was used for it. */
export function asAsked(error: unknown, used: string, path: string): unknown {
  if (used === path || used === "/") return error;
  if (!(error instanceof SandboxError) || !error.message.includes(used)) return error;
  return new SandboxError(error, error.message.replaceAll(used, path), { cause: error });
}
