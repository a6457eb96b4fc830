import { SandboxError } from "@coppice/core";
import type { BuiltTemplates } from "./built-templates.js";
import type { NullfsMount } from "../jails/jail-conf.js";
import type { JailSettings } from "../jail-freebsd-config.js";

/** A template, as jails are made from it. */
export interface JailTemplate {
  /** Its default account. */
  readonly user: string;
  readonly mounts: readonly NullfsMount[];
}

/** The templates of this backend: what the settings name, what was built, or snapshots by the names of the layout. */
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

  /** @throws SandboxError not_found for a name that no snapshot can have. */
  get(name: string): JailTemplate {
    const settings = this.#settingsOf(name);
    return { user: settings?.user ?? "user", mounts: settings?.mounts ?? [] };
  }

  /**
   * The snapshot that its sandboxes begin with now, `<dataset>@<snapshot>`. Whether it is there, a clone finds out.
   * @throws SandboxError not_found for a name that no snapshot can have.
   */
  async snapshotOf(name: string): Promise<string> {
    const chosen = this.#settingsOf(name)?.snapshot ?? (await this.#built.current(name));
    const dataset = name === "base" ? "_template" : `${name}-template`;
    return chosen ?? `${this.#parent}/${dataset}@base`;
  }

  #settingsOf(name: string): JailSettings["templates"][string] | undefined {
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name)) {
      throw new SandboxError("not_found", `jail-freebsd has no template '${name}'`);
    }
    return Object.hasOwn(this.#settings, name) ? this.#settings[name] : undefined;
  }
}
