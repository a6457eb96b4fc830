import { SandboxError } from "@coppice/core";
import {
  type ImageId,
  type PackSource,
  type SandboxImage,
  type SandboxSpec,
  type SnapshotId,
  type FullLimits,
  fullLimits,
} from "@coppice/core/backend";
import type { JailSettings } from "./jail-freebsd-config.js";
import type { NullfsMount } from "./jails/jail-conf.js";
import type { Opened } from "./open-host.js";

export interface SandboxRoot {
  readonly user: string;
  /** Directory of its commands; undefined for the home of each user. */
  readonly workdir: string | undefined;
  readonly mounts: readonly NullfsMount[];
}

/** Snapshots that an operator made: by the names of the layout, or as the settings name them. */
export class Templates {
  readonly #settings: Pick<JailSettings, "dataset" | "templates">;

  constructor(settings: Pick<JailSettings, "dataset" | "templates">) {
    this.#settings = settings;
  }

  /** @throws SandboxError not_found for an invalid name. */
  get(name: string): SandboxRoot {
    const settings = this.#settingsOf(name);
    return { user: settings?.user ?? "user", workdir: undefined, mounts: settings?.mounts ?? [] };
  }

  /**
   * Snapshot that new sandboxes are cloned from, `<dataset>@<snapshot>`. The clone fails when it is missing.
   * @throws SandboxError not_found for an invalid name.
   */
  snapshotOf(name: string): string {
    const dataset = name === "base" ? "_template" : `${name}-template`;
    return this.#settingsOf(name)?.snapshot ?? `${this.#settings.dataset}/${dataset}@base`;
  }

  #settingsOf(name: string): JailSettings["templates"][string] | undefined {
    // zfs(8) has a limit of 255 characters for a dataset.
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/.test(name))
      throw new SandboxError("template_not_found", `jail-freebsd has no template '${name.slice(0, 100)}'`);
    return Object.hasOwn(this.#settings.templates, name) ? this.#settings.templates[name] : undefined;
  }
}

/** @throws SandboxError not_found for an invalid name of a template. */
export function rootOf({ templates }: Opened, template: string, image?: SandboxImage): SandboxRoot {
  if (image === undefined) return templates.get(template);
  return { user: image.user, workdir: image.workdir, mounts: [] };
}

/** Snapshot that a sandbox is cloned from. @throws SandboxError not_found, invalid_argument */
export async function originOf(opened: Opened, { image, snapshot, template }: SandboxSpec): Promise<string> {
  if (snapshot !== undefined) return keptOf(opened, snapshot, image?.id);
  return image === undefined ? opened.templates.snapshotOf(template) : opened.images.snapshotOf(image.id);
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

/** The image of a sandbox as a property of its dataset, which has no blanks. */
export function imageText({ id, user, workdir = "" }: SandboxImage): string {
  return [id, ...[user, workdir].map((text) => Buffer.from(text).toString("base64url"))].join(":");
}

export function imageOf(text: string): SandboxImage {
  const [id = "", ...encoded] = text.split(":");
  const [user = "", workdir = ""] = encoded.map((each) => Buffer.from(each, "base64url").toString());
  return { id, user, ...(workdir !== "" && { workdir }) };
}

/** The limits of a sandbox as a property of its dataset. */
export function limitsText({ cpuCount, diskMiB, memoryMiB, processes }: FullLimits): string {
  return [cpuCount, memoryMiB, diskMiB, processes].join(":");
}

/** What is no limit, for the property can be changed by hand, is the default. */
export function limitsOf(text: string | undefined, defaults: FullLimits): FullLimits {
  const [cpuCount, memoryMiB, diskMiB, processes] = text?.split(":").map(limitOf) ?? [];
  return fullLimits({ cpuCount, memoryMiB, diskMiB, processes }, defaults);
}

function limitOf(text: string): number | undefined {
  const limit = Number(text);
  return Number.isFinite(limit) && limit > 0 ? limit : undefined;
}
