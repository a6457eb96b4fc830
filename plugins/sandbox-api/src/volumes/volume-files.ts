import { posix } from "node:path";
import { SandboxError } from "@coppice/core";
import type { FileInfo, Files, OpenFile } from "@coppice/core/backend";
import type { VolumeQuery } from "./volume-query.js";
import { REASONS } from "../reasons.js";

/** Everything below a directory of a volume. @throws SandboxError resource_exhausted for more than `most` entries. */
export async function listVolume(
  files: Files,
  { path, depth }: Pick<VolumeQuery, "path" | "depth">,
  most: number,
): Promise<readonly FileInfo[]> {
  const entries: FileInfo[] = [];
  for await (const entry of files.list(path, Math.max(depth ?? 1, 1))) {
    if (entries.length === most) {
      throw new SandboxError(
        "listing_limit_reached",
        `there are more than ${most} entries: ask for fewer levels`,
      );
    }
    entries.push(entry);
  }
  return entries;
}

export async function changeInVolume(
  files: Files,
  { path, uid, gid, mode }: Pick<VolumeQuery, "path" | "uid" | "gid" | "mode">,
): Promise<FileInfo> {
  const info = await files.stat(path);
  if (uid === undefined && gid === undefined && mode === undefined) return info;
  if (files.change === undefined) {
    throw new SandboxError(
      REASONS.volume_owner_unsupported,
      "the backend of this volume changes neither owners nor modes",
    );
  }
  const owner =
    uid === undefined && gid === undefined ? undefined : { uid: uid ?? info.uid, gid: gid ?? info.gid };
  return files.change(path, { mode, owner });
}

/** Makes a directory; with `force` also its missing parents, and an existing one is fine. */
export async function makeVolumeDirectory(files: Files, query: VolumeQuery): Promise<FileInfo> {
  const { path, force } = query;
  if (force !== "true") {
    const parent = await files.stat(posix.dirname(posix.resolve("/", path)));
    if (parent.kind !== "directory") throw new SandboxError("path_is_file", `${parent.path} is no directory`);
  }
  await files.makeDir(path).catch((error: unknown) => {
    const isThere = error instanceof SandboxError && error.code === "already_exists";
    if (!isThere || force !== "true") throw error;
  });
  return changeInVolume(files, query);
}

/** Writes a file; `force: false` refuses to replace one. */
export async function writeVolumeFile(
  files: Files,
  query: VolumeQuery,
  data: AsyncIterable<Uint8Array>,
): Promise<FileInfo> {
  const { path, force, mode } = query;
  if (force === "false" && (await exists(files, path))) {
    throw new SandboxError("path_exists", `file already exists: ${path}`);
  }
  await files.write(path, data, { mode });
  return changeInVolume(files, query);
}

/** Removes a file or a tree. @throws SandboxError not_found */
export async function removeFromVolume(files: Files, path: string): Promise<void> {
  if (posix.resolve("/", path) === "/") {
    throw new SandboxError("root_not_removable", "the volume itself is removed with DELETE /volumes/{id}");
  }
  await files.stat(path);
  await files.remove(path);
}

/** Exactly the promised bytes, also of a file that grows meanwhile. @throws SandboxError data_loss when it shrinks. */
export async function* contentOf(file: OpenFile): AsyncGenerator<Uint8Array> {
  let leftBytes = file.info.sizeBytes;
  if (leftBytes === 0) return;
  for await (const chunk of file.content({ length: leftBytes })) {
    leftBytes -= chunk.length;
    yield chunk;
  }
  if (leftBytes > 0) throw new SandboxError("file_shrank", "the file shrank while it was read");
}

async function exists(files: Files, path: string): Promise<boolean> {
  try {
    await files.stat(path);
    return true;
  } catch (error) {
    if (error instanceof SandboxError && error.code === "not_found") return false;
    throw error;
  }
}
