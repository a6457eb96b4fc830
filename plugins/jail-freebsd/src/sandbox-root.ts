import { SandboxError } from "@coppice/core";
import type { SandboxImage, SandboxSpec } from "@coppice/core/backend";
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
export async function originOf(
  { datasets, images, signatures, templates }: Opened,
  { image, snapshot, template }: SandboxSpec,
): Promise<string> {
  if (snapshot !== undefined) {
    const kept = (await datasets.snapshots()).get(snapshot);
    if (kept === undefined)
      throw new SandboxError("snapshot_not_found", `there is no snapshot '${snapshot}'`);
    if ((kept.image && imageOf(kept.image).id) === image?.id) return kept.full;
    const text = `snapshot '${snapshot}' is not of the template '${template}'`;
    throw new SandboxError("snapshot_of_other_template", text);
  }
  if (image !== undefined) return images.snapshotOf(image.id);
  const origin = await templates.snapshotOf(template);
  await signatures?.verify(template, origin);
  return origin;
}
