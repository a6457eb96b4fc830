import type { SandboxRecord, Volumes } from "@coppice/core";
import { z } from "zod";

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
