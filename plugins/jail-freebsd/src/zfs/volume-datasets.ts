import { rmdir } from "node:fs/promises";
import { join } from "node:path";
import { SandboxError } from "@coppice/core";
import { type Mount, type VolumeId, type VolumeSpec, ignoring } from "@coppice/core/backend";
import type { Datasets } from "./datasets.js";
import type { Host } from "../host/host.js";
import type { NullfsMount } from "../jails/jail-conf.js";

interface VolumeDatasetsOptions {
  readonly host: Host;
  readonly datasets: Datasets;
  readonly directory: string;
  readonly owner: number;
}

const NAME = "volume-";

/** Directories that sandboxes share. Each is a dataset, mounted into jails with nullfs. */
export class VolumeDatasets {
  readonly #options: VolumeDatasetsOptions;

  constructor(options: VolumeDatasetsOptions) {
    this.#options = options;
  }

  async make({ id, sizeMiB }: VolumeSpec): Promise<void> {
    const { datasets, host, owner } = this.#options;
    await datasets.create(nameOf(id), { mountPoint: this.#pathOf(id), refquotaMiB: sizeMiB });
    try {
      await host.run("chown", [`${owner}:${owner}`, this.#pathOf(id)]);
      // It cannot be mounted in a sandbox before this.
      await datasets.set(nameOf(id), "state", "running");
    } catch (error) {
      await this.remove(id);
      throw error;
    }
  }

  async list(): Promise<readonly VolumeId[]> {
    const owned = await this.#options.datasets.owned(NAME, true);
    return owned.map(({ name }) => name.slice(NAME.length));
  }

  async remove(id: VolumeId): Promise<void> {
    await this.#options.datasets.destroy(nameOf(id));
    await rmdir(this.#pathOf(id)).catch(ignoring("ENOENT"));
  }

  async usage(id: VolumeId): Promise<number> {
    const used = (await this.#options.datasets.usedBytes([nameOf(id)])).get(nameOf(id));
    if (used === undefined) throw new SandboxError("volume_not_found", `volume '${id}' not found`);
    return used;
  }

  /**
   * Returns the mounts of volumes, and creates their mount points in a clone without processes.
   * @param root of the clone.
   * @throws SandboxError not_found, or invalid_argument for an impossible mount point
   */
  async mountsIn(root: string, mounts: readonly Mount[]): Promise<readonly NullfsMount[]> {
    if (mounts.length === 0) return [];
    const owned = await this.#options.datasets.owned(NAME);
    const whole = new Set(owned.filter(({ state }) => state === "running").map(({ name }) => name));
    const made: NullfsMount[] = [];
    for (const { volume, path, readOnly } of mounts) {
      if (!whole.has(nameOf(volume)))
        throw new SandboxError("volume_not_found", `volume '${volume}' not found`);
      await this.#makePlace(root, path);
      made.push({ source: this.#pathOf(volume), target: path, readOnly, isShared: true });
    }
    return made;
  }

  /** Component by component, so that no link leads to directories of the host. */
  async #makePlace(root: string, path: string): Promise<void> {
    const { host } = this.#options;
    // The path is written into jail.conf(5).
    if (!/^(\/[A-Za-z0-9._@:+-]+)+$/.test(path))
      throw new SandboxError("mounts_invalid", `'${path}' has characters that no place of a volume can have`);
    let place = (await host.run("realpath", [root])).trim();
    for (const name of path.slice(1).split("/")) {
      place = `${place}/${name}`;
      const made = await host.try("mkdir", [place]);
      // The dot makes a file an error.
      const found = await host.try("realpath", [`${place}/.`]);
      if (found.code === 0 && found.stdout.trim() === place) continue;
      const reason = made.code === 0 ? found.stderr : made.stderr;
      throw new SandboxError("mounts_invalid", `there cannot be a volume at '${path}'`, {
        cause: new Error(reason.trim()),
      });
    }
  }

  #pathOf(id: VolumeId): string {
    return join(this.#options.directory, nameOf(id));
  }
}

function nameOf(id: VolumeId): string {
  if (!/^[a-z0-9]+$/.test(id)) throw new Error(`'${id}' is no id of a volume`);
  return `${NAME}${id}`;
}
