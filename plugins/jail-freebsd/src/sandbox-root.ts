import { SandboxError } from "@coppice/core";
import type { ImageId, PackSource, SandboxImage, SandboxSpec, SnapshotId } from "@coppice/core/backend";
import type { NullfsMount } from "./jails/jail-conf.js";
import type { Opened } from "./open-host.js";
import { imageOf } from "./zfs/image-facts.js";

/** How a sandbox uses its files. */
export interface SandboxRoot {
  /** Its default account. */
  readonly user: string;
  /** Directory of its commands; undefined for the home of each user. */
  readonly workdir: string | undefined;
  /** Directories of the host. */
  readonly mounts: readonly NullfsMount[];
}

/** @throws SandboxError not_found for an invalid name of a template. */
export function rootOf({ templates }: Opened, template: string, image?: SandboxImage): SandboxRoot {
  if (image === undefined) return { ...templates.get(template), workdir: undefined };
  return { user: image.user, workdir: image.workdir, mounts: [] };
}

/** Snapshot that a sandbox is cloned from. @throws SandboxError not_found, invalid_argument, failed_precondition */
export async function originOf(opened: Opened, { image, snapshot, template }: SandboxSpec): Promise<string> {
  if (snapshot !== undefined) return keptOf(opened, snapshot, image?.id);
  const { images, signatures, templates } = opened;
  if (image !== undefined) return images.snapshotOf(image.id);
  const origin = await templates.snapshotOf(template);
  await signatures?.verify(template, origin);
  return origin;
}

/** Snapshot that is packed. @throws SandboxError not_found, invalid_argument for a snapshot of another image. */
export async function packedOf(opened: Opened, { image, snapshot }: PackSource): Promise<string> {
  return snapshot === undefined ? opened.images.snapshotOf(image) : keptOf(opened, snapshot, image);
}

/** A kept snapshot of a sandbox with this image, or with none. */
async function keptOf({ datasets }: Opened, id: SnapshotId, image: ImageId | undefined): Promise<string> {
  const kept = (await datasets.snapshots()).get(id);
  if (kept === undefined) throw new SandboxError("snapshot_not_found", `there is no snapshot '${id}'`);
  if ((kept.image && imageOf(kept.image).id) === image) return kept.full;
  throw new SandboxError("snapshot_of_other_template", `snapshot '${id}' is of another template`);
}
