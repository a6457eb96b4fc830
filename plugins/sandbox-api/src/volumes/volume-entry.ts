import type { FileInfo } from "@coppice/core";

/** One entry of a volume for the SDK's `Volume`. Backends know only the time of the last change. */
export function volumeEntry(info: FileInfo) {
  const { name, path, kind, sizeBytes, rawMode, uid, gid, modifiedAtMs, symlinkTarget } = info;
  const changed = new Date(modifiedAtMs).toISOString();
  return {
    name,
    type: symlinkTarget === undefined ? kind : "symlink",
    path,
    size: sizeBytes,
    mode: rawMode & 0o7777,
    uid,
    gid,
    atime: changed,
    mtime: changed,
    ctime: changed,
    ...(symlinkTarget !== undefined && { target: symlinkTarget }),
  };
}
