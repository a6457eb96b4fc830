import { SandboxError } from "@coppice/core";
import type { BuiltTemplates } from "./built-templates.js";
import type { NullfsMount } from "../jails/jail-conf.js";
import type { JailSettings } from "../jail-freebsd-config.js";

export interface JailTemplate {
  /** Its default account. */
  readonly user: string;
  readonly mounts: readonly NullfsMount[];
}

/** Templates of this backend: from the settings, from builds, or snapshots named by the default layout. */
export class Templates {
  readonly #settings: JailSettings["templates"];
  readonly #parent: string;
  readonly #built: BuiltTemplates;

  constructor(
    settings: JailSettings["templates"],
    { parent, built }: { readonly parent: string; readonly built: BuiltTemplates },
  ) {
    this.#settings = settings;
    this.#parent = parent;
    this.#built = built;
  }

  /** @throws SandboxError not_found for an invalid name. */
  get(name: string): JailTemplate {
    const settings = this.#settingsOf(name);
    return { user: settings?.user ?? "user", mounts: settings?.mounts ?? [] };
  }

  /**
   * Snapshot that new sandboxes are cloned from, `<dataset>@<snapshot>`. The clone fails when it is missing.
   * @throws SandboxError not_found for an invalid name.
   */
  async snapshotOf(name: string): Promise<string> {
    const chosen = this.#settingsOf(name)?.snapshot ?? (await this.#built.current(name));
    const dataset = name === "base" ? "_template" : `${name}-template`;
    return chosen ?? `${this.#parent}/${dataset}@base`;
  }

  #settingsOf(name: string): JailSettings["templates"][string] | undefined {
    // zfs(8) has a limit of 255 characters for a dataset and of 256 for a property.
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/.test(name)) {
      throw new SandboxError("template_not_found", `jail-freebsd has no template '${name.slice(0, 100)}'`);
    }
    return Object.hasOwn(this.#settings, name) ? this.#settings[name] : undefined;
  }
}
