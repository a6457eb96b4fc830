import { SandboxError } from "@coppice/core";
import type { Datasets } from "./datasets.js";
import type { NullfsMount } from "./jail-conf.js";
import type { JailSettings } from "./jail-freebsd-config.js";

/** What a sandbox of a template is made of. */
export interface JailTemplate {
  /** `<dataset>@<snapshot>` */
  readonly snapshot: string;
  /** Its default account. */
  readonly user: string;
  readonly mounts: readonly NullfsMount[];
}

/** The templates of this backend: snapshots by the names of the layout, or those that the settings name. */
export class Templates {
  readonly #settings: JailSettings["templates"];
  readonly #datasets: Datasets;

  constructor(settings: JailSettings["templates"], datasets: Datasets) {
    this.#settings = settings;
    this.#datasets = datasets;
  }

  /** @throws SandboxError not_found for a name that no snapshot can have. Whether it is there, a clone finds out. */
  get(name: string): JailTemplate {
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name)) {
      throw new SandboxError("not_found", `jail-freebsd has no template '${name}'`);
    }
    const settings = Object.hasOwn(this.#settings, name) ? this.#settings[name] : undefined;
    const dataset = name === "base" ? "_template" : `${name}-template`;
    return {
      snapshot: settings?.snapshot ?? `${this.#datasets.parent}/${dataset}@base`,
      user: settings?.user ?? "user",
      mounts: settings?.mounts ?? [],
    };
  }
}
