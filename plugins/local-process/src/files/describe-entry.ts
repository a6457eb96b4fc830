import type { Stats } from "node:fs";
import { posix } from "node:path";
import type { FileInfo, FileKind } from "@coppice/core/backend";
import { accountName } from "./accounts.js";
import { type Held, type Tree, WalkError, codeOf } from "./walk.js";

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
