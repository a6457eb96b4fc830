import { mkdir, readdir, readFile, rename, stat } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError, MEBIBYTE } from "@coppice/core";
import { type Mount, replaceFile, type VolumeId, type VolumeSpec } from "@coppice/core/backend";
import { z } from "zod";
import type { MountedVolume } from "../launcher/launch-instructions.js";
import type { Launcher } from "../launcher/launcher.js";
import type { ProjectQuotas } from "../limits/given-numbers.js";
import type { TemplateOwners } from "../launcher/user-namespace.js";

interface VolumeStoreOptions {
  readonly directory: string;
  readonly launcher: Launcher;
  readonly quotas: ProjectQuotas | undefined;
  readonly owners: TemplateOwners;
  readonly scanEntries: number;
}

/** Record of a volume for a later server. Written before any part of it is created. */
const volumeFacts = z
  .object({
    sizeMiB: z.number(),
    project: z.number().optional(),
    /** True for one that has exceeded its size where nothing held it. */
    isClosed: z.boolean().optional(),
  })
  .readonly();
type VolumeFacts = z.infer<typeof volumeFacts>;

const USER_ID = 1000;
const EVERY_ENTRY = 2 ** 32 - 1;
const RECORD = "volume.json";
const DATA = "data";

/** Directories that sandboxes share, below one that only the server's user can enter. */
export class VolumeStore {
  readonly #options: VolumeStoreOptions;

  constructor(options: VolumeStoreOptions) {
    this.#options = options;
  }

  async open(): Promise<void> {
    await mkdir(this.#options.directory, { recursive: true, mode: 0o700 });
    for (const id of await this.list()) {
      const project = (await this.#read(id))?.project;
      if (project !== undefined) this.#options.quotas?.reclaim(project);
    }
  }

  async make({ id, sizeMiB }: VolumeSpec): Promise<void> {
    const { owners, quotas } = this.#options;
    try {
      await mkdir(this.#path(id), { mode: 0o700 });
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      throw new SandboxError("volume_exists", `volume '${id}' exists`);
    }
    try {
      const project = quotas?.take();
      await this.#write(id, { sizeMiB, project });
      const data = this.#dataOf(id);
      // Created under another name: a volume with its final name is complete and can be mounted.
      await mkdir(`${data}.making`, { mode: 0o755 });
      if (project !== undefined) await quotas?.hold(`${data}.making`, project, sizeMiB);
      await owners.giveToUser(`${data}.making`, USER_ID);
      await rename(`${data}.making`, data);
    } catch (error) {
      await this.remove(id);
      throw error;
    }
  }

  async list(): Promise<readonly VolumeId[]> {
    return readdir(this.#options.directory);
  }

  async remove(id: VolumeId): Promise<void> {
    const { launcher, quotas } = this.#options;
    const project = (await this.#read(id))?.project;
    // The record goes last: an interrupted removal leaves the project's number.
    await launcher.remove(this.#dataOf(id), `${this.#dataOf(id)}.making`);
    if (project !== undefined) await quotas?.release(project);
    await launcher.remove(this.#path(id));
  }

  async usage(id: VolumeId): Promise<number> {
    const { launcher, quotas, scanEntries } = this.#options;
    const { project } = await this.#get(id);
    if (project !== undefined && quotas !== undefined) return quotas.usage(project);
    return (await launcher.measure(this.#dataOf(id), scanEntries)).bytes;
  }

  /** Size, and use by every file of it. @throws SandboxError not_found */
  async measure(id: VolumeId): Promise<{ readonly sizeBytes: number; readonly usedBytes: number }> {
    const { sizeMiB } = await this.#get(id);
    const { bytes } = await this.#options.launcher.measure(this.#dataOf(id), EVERY_ENTRY);
    return { sizeBytes: sizeMiB * MEBIBYTE, usedBytes: bytes };
  }

  /** Makes a volume read-only for all later sandboxes, permanently. @throws SandboxError not_found */
  async close(id: VolumeId): Promise<void> {
    await this.#write(id, { ...(await this.#get(id)), isClosed: true });
  }

  async mounted({ volume, path, readOnly }: Mount): Promise<MountedVolume> {
    const { isClosed = false, project } = await this.#get(volume);
    const isReadOnly = readOnly || isClosed;
    const isWatched = !isReadOnly && project === undefined;
    return { id: volume, source: this.#dataOf(volume), target: path, readOnly: isReadOnly, isWatched };
  }

  async #get(id: VolumeId): Promise<VolumeFacts> {
    const facts = await this.#read(id);
    const data = await stat(this.#dataOf(id)).catch(() => undefined);
    if (facts === undefined || data === undefined)
      throw new SandboxError("volume_not_found", `volume '${id}' not found`);
    return facts;
  }

  async #write(id: VolumeId, facts: VolumeFacts): Promise<void> {
    await replaceFile(join(this.#path(id), RECORD), JSON.stringify(facts), { mode: 0o600 });
  }

  async #read(id: VolumeId): Promise<VolumeFacts | undefined> {
    const text = await readFile(join(this.#path(id), RECORD), "utf8").catch(() => undefined);
    return text === undefined ? undefined : volumeFacts.parse(JSON.parse(text));
  }

  #dataOf(id: VolumeId): string {
    return join(this.#path(id), DATA);
  }

  #path(id: VolumeId): string {
    return join(this.#options.directory, id);
  }
}
