import { posix } from "node:path";
import { SandboxError } from "../kernel/errors.js";
import type { User } from "../sandbox/contract/backend.js";
import type {
  FileChange,
  FileInfo,
  FileKind,
  Files,
  OpenFile,
  ReadOptions,
  WriteOptions,
} from "../sandbox/contract/files.js";
import type { TarEntry } from "./tar-archive.js";

interface Node {
  readonly type: "file" | "directory" | "link";
  mode: number;
  uid: number;
  gid: number;
  modifiedAtMs: number;
  metadata: Readonly<Record<string, string>>;
}

interface FileNode extends Node {
  readonly type: "file";
  data: Uint8Array;
}

interface DirectoryNode extends Node {
  readonly type: "directory";
  readonly children: Map<string, AnyNode>;
}

interface LinkNode extends Node {
  readonly type: "link";
  readonly target: string;
}

type AnyNode = FileNode | DirectoryNode | LinkNode;

/** Target of a path: the directory that has, or would have, its last component. */
interface Place {
  readonly directory: DirectoryNode;
  readonly name: string;
  /** Absolute, without links. */
  readonly path: string;
  readonly node: AnyNode | undefined;
}

const TYPE_BITS = { file: 0o100000, directory: 0o040000, link: 0o120000 } as const;
const LINKS_FOLLOWED = 40;
const CHUNK_BYTES = 65_536;

/** A file system of JavaScript objects, with links, owners and modes. */
export class MemoryFiles implements Files {
  #root: DirectoryNode;
  readonly #users: readonly User[];
  readonly #defaultUser: User;
  readonly #now: () => number;
  readonly #mounts = new Map<string, { readonly isReadOnly: boolean }>();
  #open = 0;

  /** @param users the first one is the default user. Their homes are created. */
  constructor(users: readonly [User, ...User[]], now: () => number) {
    this.#users = users;
    this.#defaultUser = users[0];
    this.#now = now;
    this.#root = this.#newDirectory({ uid: 0, gid: 0 });
    this.#makeSystem(users);
  }

  /** An empty directory that the default user owns. */
  static empty(users: readonly [User, ...User[]], now: () => number): MemoryFiles {
    const made = new MemoryFiles(users, now);
    made.#root = made.#newDirectory(users[0]);
    return made;
  }

  #makeSystem(users: readonly User[]): void {
    for (const directory of ["/tmp", "/etc", "/root"]) this.#makeDirectories(directory, { uid: 0, gid: 0 });
    for (const user of users) this.#makeDirectories(user.home, user);
  }

  get open(): number {
    return this.#open;
  }

  /** Copies the contents of another one, without its mounts. */
  copyFrom(other: MemoryFiles): void {
    this.#root = structuredClone(other.#root);
    for (const path of other.#mounts.keys()) {
      const { node } = this.#locate(path, false);
      if (node?.type === "directory") node.children.clear();
    }
  }

  /** Mounts the root of another one at a path. */
  mount(path: string, other: MemoryFiles, isReadOnly: boolean): void {
    this.#makeDirectories(path, { uid: 0, gid: 0 });
    const place = this.#locate(path, false);
    place.directory.children.set(place.name, other.#root);
    this.#mounts.set(path, { isReadOnly });
  }

  /** All below the root as entries of a tar file, by name. */
  *entries(directory = this.#root, path = ""): Iterable<TarEntry> {
    for (const [name, node] of [...directory.children].toSorted(([a], [b]) => (a < b ? -1 : 1))) {
      const { mode, uid, gid, type } = node;
      const facts = { name: `${path}${name}`, mode, uid, gid };
      if (type === "file") yield { ...facts, body: node.data };
      else if (type === "link") yield { ...facts, type: "2", link: node.target };
      else {
        yield { ...facts, name: `${facts.name}/`, type: "5" };
        yield* this.entries(node, `${facts.name}/`);
      }
    }
  }

  get usedBytes(): number {
    return sizeOf(this.#root);
  }

  /** Makes a symbolic link, as a program inside would. */
  link(path: string, target: string): void {
    const place = this.#locate(path, false);
    if (place.node !== undefined) throw new SandboxError("path_exists", `${path} exists`);
    const link: LinkNode = { ...this.#newNode(0o777, this.#defaultUser), type: "link", target };
    place.directory.children.set(place.name, link);
  }

  async stat(path: string): Promise<FileInfo> {
    const place = this.#locate(path, false);
    return this.#info(path, existing(place, path));
  }

  async *list(path: string, depth: number): AsyncIterable<FileInfo> {
    const node = existing(this.#locate(path, true), path);
    if (node.type !== "directory") throw notDirectory(path);
    yield* this.#below(path, node, depth);
  }

  async read(path: string): Promise<OpenFile> {
    const node = existing(this.#locate(path, true), path);
    if (node.type !== "file") throw isDirectory(path);
    const { data } = node;
    let isOpen = true;
    this.#open += 1;
    return {
      info: this.#info(path, node),
      content: (options) => chunks(data, options),
      [Symbol.asyncDispose]: async () => {
        if (isOpen) this.#open -= 1;
        isOpen = false;
      },
    };
  }

  async write(path: string, data: AsyncIterable<Uint8Array>, options: WriteOptions = {}): Promise<FileInfo> {
    const user = this.#account(options.user);
    const parts: Uint8Array[] = [];
    for await (const part of data) parts.push(Uint8Array.from(part));
    this.#requireWritable(path);
    this.#makeDirectories(posix.dirname(path), user);
    const place = this.#locate(path, true);
    if (place.node?.type === "directory") throw isDirectory(path);
    const node: FileNode = {
      ...(place.node ?? this.#newNode(options.mode ?? 0o644, user)),
      type: "file",
      modifiedAtMs: this.#now(),
      data: Buffer.concat(parts),
    };
    if (options.metadata !== undefined) node.metadata = { ...options.metadata };
    place.directory.children.set(place.name, node);
    return this.#info(path, node);
  }

  async makeDir(path: string, options: Pick<WriteOptions, "user"> = {}): Promise<FileInfo> {
    const { node } = this.#locateLoosely(path) ?? {};
    if (node?.type === "directory")
      throw new SandboxError("path_exists", `directory already exists: ${path}`);
    if (node !== undefined) throw notDirectory(path);
    this.#requireWritable(path);
    this.#makeDirectories(path, this.#account(options.user));
    return this.stat(path);
  }

  async move(
    source: string,
    destination: string,
    options: Pick<WriteOptions, "user"> = {},
  ): Promise<FileInfo> {
    const from = this.#locate(source, false);
    const node = existing(from, source);
    for (const changed of [source, destination]) this.#requireWritable(changed);
    this.#makeDirectories(posix.dirname(destination), this.#account(options.user));
    const to = this.#locate(destination, false);
    if (to.path === from.path) return this.#info(destination, node);
    if (to.path.startsWith(`${from.path}/`)) {
      throw new SandboxError("move_into_itself", `cannot move ${source} into itself`);
    }
    if (to.node?.type === "directory" && node.type !== "directory") throw isDirectory(destination);
    if (to.node !== undefined && to.node.type !== "directory" && node.type === "directory") {
      throw notDirectory(destination);
    }
    if (to.node?.type === "directory" && to.node.children.size > 0) {
      throw new SandboxError("directory_not_empty", `directory not empty: ${destination}`);
    }
    from.directory.children.delete(from.name);
    to.directory.children.set(to.name, node);
    return this.#info(destination, node);
  }

  async change(path: string, { mode, owner }: FileChange): Promise<FileInfo> {
    const node = existing(this.#locate(path, true), path);
    this.#requireWritable(path);
    if (mode !== undefined) node.mode = mode;
    if (owner !== undefined) Object.assign(node, { uid: owner.uid, gid: owner.gid });
    return this.#info(path, node);
  }

  async remove(path: string): Promise<void> {
    const place = this.#locateLoosely(path, false);
    this.#requireWritable(path);
    if (place?.node === this.#root) throw new SandboxError("root_not_removable", "cannot remove /");
    place?.directory.children.delete(place.name);
  }

  *#below(path: string, directory: DirectoryNode, depth: number): Iterable<FileInfo> {
    const names = [...directory.children.keys()].toSorted((a, b) =>
      Buffer.compare(Buffer.from(a), Buffer.from(b)),
    );
    for (const name of names) {
      const node = directory.children.get(name);
      if (node === undefined) continue;
      const childPath = posix.join(path, name);
      yield this.#info(childPath, node);
      if (node.type === "directory" && depth > 1) yield* this.#below(childPath, node, depth - 1);
    }
  }

  #info(path: string, node: AnyNode): FileInfo {
    const target = node.type === "link" ? this.#locateLoosely(path) : undefined;
    const shown = node.type === "link" ? target?.node : node;
    return {
      name: posix.basename(path),
      path,
      kind: kindOf(shown),
      sizeBytes: node.type === "file" ? node.data.length : node.type === "link" ? node.target.length : 4096,
      mode: shown?.mode ?? 0,
      rawMode: TYPE_BITS[node.type] | node.mode,
      uid: node.uid,
      gid: node.gid,
      owner: this.#users.find(({ uid }) => uid === node.uid)?.name ?? String(node.uid),
      group: this.#users.find(({ gid }) => gid === node.gid)?.name ?? String(node.gid),
      modifiedAtMs: node.modifiedAtMs,
      symlinkTarget: node.type === "link" ? (shown === undefined ? path : target?.path) : undefined,
      metadata: node.metadata,
    };
  }

  #requireWritable(path: string): void {
    for (const [mounted, { isReadOnly }] of this.#mounts) {
      if (isReadOnly && `${path}/`.startsWith(`${mounted}/`)) {
        throw new SandboxError("path_not_permitted", `${path}: read-only file system`);
      }
    }
  }

  #account(name: string | undefined): User {
    const user = name === undefined ? this.#defaultUser : this.#users.find((one) => one.name === name);
    if (user === undefined) throw new SandboxError("account_not_found", `unknown user ${name}`);
    return user;
  }

  #newNode(mode: number, { uid, gid }: Pick<User, "uid" | "gid">): Omit<Node, "type"> {
    return { mode, uid, gid, modifiedAtMs: this.#now(), metadata: {} };
  }

  #newDirectory(owner: Pick<User, "uid" | "gid">): DirectoryNode {
    return { ...this.#newNode(0o755, owner), type: "directory", children: new Map() };
  }

  #makeDirectories(path: string, owner: Pick<User, "uid" | "gid">): void {
    let made = "/";
    for (const name of path.split("/").filter(Boolean)) {
      made = posix.join(made, name);
      const place = this.#locate(made, true);
      if (place.node === undefined) place.directory.children.set(place.name, this.#newDirectory(owner));
      else if (place.node.type !== "directory") throw notDirectory(made);
    }
  }

  /** As `#locate`, but undefined when a component is missing. */
  #locateLoosely(path: string, followLast = true): Place | undefined {
    try {
      return this.#locate(path, followLast);
    } catch (error) {
      if (error instanceof SandboxError && error.code !== "invalid_argument") return undefined;
      throw error;
    }
  }

  /** Walks a path from the root, following links, like the kernel does. */
  #locate(path: string, followLast: boolean): Place {
    if (!path.startsWith("/")) throw new SandboxError("path_invalid", `not an absolute path: ${path}`);
    const trail: { readonly name: string; readonly directory: DirectoryNode }[] = [];
    const todo = path.split("/").filter((name) => name !== "" && name !== ".");
    let linksLeft = LINKS_FOLLOWED;
    const current = (): DirectoryNode => trail.at(-1)?.directory ?? this.#root;
    const pathOf = (...names: string[]): string =>
      `/${[...trail.map(({ name }) => name), ...names].join("/")}`;
    for (let name = todo.shift(); name !== undefined; name = todo.shift()) {
      if (name === "..") {
        trail.pop();
        continue;
      }
      const directory = current();
      const node = directory.children.get(name);
      const isLast = todo.length === 0;
      if (node?.type === "link" && (!isLast || followLast)) {
        linksLeft -= 1;
        if (linksLeft < 0) throw new SandboxError("symlink_loop", `too many links: ${path}`);
        if (node.target.startsWith("/")) trail.length = 0;
        todo.unshift(...node.target.split("/").filter((part) => part !== "" && part !== "."));
        continue;
      }
      if (isLast) {
        if (node?.type === "directory") trail.push({ name, directory: node });
        else return { directory, name, path: pathOf(name), node };
      } else if (node === undefined) throw missing(path);
      else if (node.type !== "directory") throw notDirectory(path);
      else trail.push({ name, directory: node });
    }
    const last = trail.pop();
    if (last === undefined) return { directory: this.#root, name: "", path: "/", node: this.#root };
    return { directory: current(), name: last.name, path: pathOf(last.name), node: last.directory };
  }
}

async function* chunks(
  data: Uint8Array,
  { offset = 0, length }: ReadOptions = {},
): AsyncIterable<Uint8Array> {
  const end = length === undefined ? data.length : Math.min(data.length, offset + length);
  for (let at = offset; at < end; at += CHUNK_BYTES) yield data.subarray(at, Math.min(end, at + CHUNK_BYTES));
}

function kindOf(node: AnyNode | undefined): FileKind {
  return node?.type === "file" || node?.type === "directory" ? node.type : "unknown";
}

function existing(place: Place, path: string): AnyNode {
  if (place.node === undefined) throw missing(path);
  return place.node;
}

function sizeOf(node: AnyNode): number {
  if (node.type === "file") return node.data.length;
  if (node.type === "link") return 0;
  return [...node.children.values()].reduce((total, child) => total + sizeOf(child), 0);
}

function missing(path: string): SandboxError {
  return new SandboxError("path_not_found", `${path}: no such file or directory`);
}

function notDirectory(path: string): SandboxError {
  return new SandboxError("path_is_file", `${path}: not a directory`);
}

function isDirectory(path: string): SandboxError {
  return new SandboxError("path_is_directory", `${path}: is a directory`);
}
