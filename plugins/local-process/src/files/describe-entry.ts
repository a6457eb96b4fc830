import type { Stats } from "node:fs";
import { posix } from "node:path";
import type { FileInfo, FileKind, User } from "@coppice/core/backend";
import { SandboxError } from "@coppice/core";
import { type Held, type Tree, WalkError, codeOf } from "./walk.js";

const uid = process.getuid?.() ?? 0;
const gid = process.getgid?.() ?? 0;

/** Accounts of a sandbox. Without isolation, both are the server's account. */
const ACCOUNTS: readonly User[] = [
  { name: "user", uid, gid, home: "/home/user", shell: "/bin/bash" },
  { name: "root", uid, gid, home: "/root", shell: "/bin/bash" },
];

/** @throws SandboxError not_found for names other than `user` (the default) and `root`. */
export function findAccount(name = "user"): User {
  const account = ACCOUNTS.find((candidate) => candidate.name === name);
  if (account === undefined) throw new SandboxError("account_not_found", `unknown user ${name}`);
  return account;
}

export function accountName(id: number): string {
  if (id === uid) return "user";
  return id === 0 ? "root" : String(id);
}

/** Describes a held entry. @param path requested path, inside the sandbox. */
export function describeEntry(tree: Tree, held: Held, path: string): FileInfo {
  const { stats } = held;
  const target = stats.isSymbolicLink() ? describeTarget(tree, path) : undefined;
  return {
    name: posix.basename(path) || "/",
    path,
    kind: target?.kind ?? kindOf(stats),
    sizeBytes: stats.size,
    mode: target?.mode ?? stats.mode & 0o777,
    rawMode: stats.mode,
    uid: stats.uid,
    gid: stats.gid,
    owner: accountName(stats.uid),
    group: accountName(stats.gid),
    modifiedAtMs: stats.mtimeMs,
    ...(target && { symlinkTarget: target.path }),
    // Node has no call for extended attributes.
    metadata: {},
  };
}

function describeTarget(tree: Tree, path: string): { kind: FileKind; mode: number; path: string } {
  try {
    using place = tree.resolve(path, { follow: true });
    if (place.entry !== undefined) {
      const { stats } = place.entry;
      return { kind: kindOf(stats), mode: stats.mode & 0o777, path: place.resolved };
    }
  } catch (error) {
    if (!(error instanceof WalkError) && codeOf(error) !== "EACCES") throw error;
  }
  return { kind: "unknown", mode: 0, path };
}

function kindOf(stats: Stats): FileKind {
  if (stats.isFile()) return "file";
  return stats.isDirectory() ? "directory" : "unknown";
}
