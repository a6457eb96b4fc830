import { posix } from "node:path";
import { parseInput, queryNumber, SandboxError, type SandboxRecord, type Volumes } from "@coppice/core";
import type { FileInfo, Files, OpenFile } from "@coppice/core/backend";
import { z } from "zod";
import { REASONS } from "../reasons.js";

const MAX_ID = 2 ** 32 - 2;
const MAX_MODE = 0o7777;

const decimal = (most: number) => queryNumber("a number", 10).pipe(z.int().max(most)).optional();

const query = z.object({
  path: z.string().min(1),
  uid: decimal(MAX_ID),
  gid: decimal(MAX_ID),
  mode: decimal(MAX_MODE),
  force: z.enum(["true", "false"]).optional(),
  depth: decimal(1000),
});

const id = z.int().min(0).max(MAX_ID).optional();

export const volumeMetadataBody = z.object({
  uid: id,
  gid: id,
  mode: z.int().min(0).max(MAX_MODE).optional(),
});

export type VolumeQuery = z.infer<typeof query>;

/** The query of a route of a volume's contents. @throws SandboxError invalid_argument */
export function parseVolumeQuery(parameters: URLSearchParams): VolumeQuery {
  const parsed = parseInput(query, Object.fromEntries(parameters));
  if (!parsed.path.includes("\0")) return parsed;
  throw new SandboxError("path_invalid", "a path cannot contain a NUL byte");
}

type VolumeRecord = ReturnType<ReturnType<Volumes["of"]>["get"]>;

/** The body of `POST /volumes`. E2B's volumes have no size. */
export const createVolumeBody = z.object({ name: z.string(), sizeMB: z.int32().nullish() });

/** A volume in `volumeMounts`. E2B's are all writable. */
export const volumeMountBody = z.object({
  name: z.string(),
  path: z.string(),
  readOnly: z.boolean().nullish(),
});

export function volumeBody({ id, name, sizeMiB }: VolumeRecord) {
  return { volumeID: id, name, sizeMB: sizeMiB };
}

/** A volume with the token of its contents. */
export function volumeAndTokenBody(volume: VolumeRecord, domain: string | undefined) {
  return { ...volumeBody(volume), token: volume.token, ...(domain === undefined ? {} : { domain }) };
}

export function mountBody({ name, path, readOnly }: SandboxRecord["mounts"][number]) {
  return { name, path, readOnly };
}

/** Everything below a directory of a volume. @throws SandboxError resource_exhausted for more than `most` entries. */
export async function listVolume(
  files: Files,
  { path, depth }: Pick<VolumeQuery, "path" | "depth">,
  most: number,
): Promise<readonly FileInfo[]> {
  const entries: FileInfo[] = [];
  for await (const entry of files.list(path, Math.max(depth ?? 1, 1))) {
    if (entries.length === most)
      throw new SandboxError(
        "listing_limit_reached",
        `there are more than ${most} entries: ask for fewer levels`,
      );
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
  if (files.change === undefined)
    throw new SandboxError(
      REASONS.volume_owner_unsupported,
      "the backend of this volume changes neither owners nor modes",
    );
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
  if (force === "false" && (await exists(files, path)))
    throw new SandboxError("path_exists", `file already exists: ${path}`);
  await files.write(path, data, { mode });
  return changeInVolume(files, query);
}

/** Removes a file or a tree. @throws SandboxError not_found */
export async function removeFromVolume(files: Files, path: string): Promise<void> {
  if (posix.resolve("/", path) === "/")
    throw new SandboxError("root_not_removable", "the volume itself is removed with DELETE /volumes/{id}");
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
