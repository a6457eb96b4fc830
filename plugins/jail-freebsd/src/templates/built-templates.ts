import { zfsUntilFree } from "../zfs/datasets.js";
import { isOwnValue, readTree } from "../zfs/property-tree.js";
import type { Host } from "../host/host.js";

/** A template that was built here, or whose build began. */
export interface BuiltTemplate {
  readonly name: string;
  /** Name of the dataset below the parent. */
  readonly dataset: string;
  /** `<dataset>@<snapshot>` in full; undefined for an unfinished build. */
  readonly snapshot: string | undefined;
  /** Guid of the snapshot, which is signed. */
  readonly guid: string | undefined;
  /** True when new sandboxes are cloned from it. */
  readonly isCurrent: boolean;
  /** True when it has clones. */
  readonly isInUse: boolean;
  readonly usedBytes: number;
  /** Digest of its packages with their versions; undefined without packages or for an unfinished build. */
  readonly packages: string | undefined;
}

interface BeginOptions {
  readonly name: string;
  readonly digest: string;
  /** Mount point during the build. */
  readonly mountPoint: string;
}

/** Property of a template's dataset with its builder. Sandboxes have another property. */
const BUILDER = "coppice:builder";
const NAME = "coppice:name";
const PACKAGES = "coppice:packages";
/** Property of the parent that maps a name to a snapshot. A single property changes atomically. */
const CURRENT = "coppice:template.";
const DIGITS_IN_NAME = 16;

/**
 * Built templates, as datasets beside those of sandboxes: `template-<name>-<digest>@<digest>`. Datasets of other
 * builders are never changed.
 */
export class BuiltTemplates {
  readonly #host: Host;
  readonly #parent: string;
  readonly #builder: string;

  constructor(host: Host, { parent, builder }: { readonly parent: string; readonly builder: string }) {
    this.#host = host;
    this.#parent = parent;
    this.#builder = builder;
  }

  /** Full snapshot of a name; undefined when none was built. */
  async current(name: string): Promise<string | undefined> {
    if (!/^[a-z0-9][a-z0-9._-]*$/.test(name)) return undefined;
    const words = ["get", "-H", "-o", "value", CURRENT + name, this.#parent];
    const value = (await this.#host.run("zfs", words)).trim();
    return value === "-" || value === "" ? undefined : `${this.#parent}/${value}`;
  }

  /** Creates an empty dataset for a template, and replaces an unfinished one. @returns its full name. */
  async begin({ name, digest, mountPoint }: BeginOptions): Promise<string> {
    const path = this.#path(name, digest);
    if ((await this.#builderOf(path)) !== undefined) await this.#destroy(path);
    const properties = [`mountpoint=${mountPoint}`, `${NAME}=${name}`, `${BUILDER}=${this.#builder}`];
    await this.#host.run("zfs", ["create", ...properties.flatMap((each) => ["-o", each]), path]);
    return path;
  }

  /** True when a template with that digest was finished. */
  async isWhole(name: string, digest: string): Promise<boolean> {
    const path = `${this.#path(name, digest)}@${digest}`;
    return (await this.#host.try("zfs", ["get", "-H", "-o", "value", "type", path])).code === 0;
  }

  /** Unmounts and keeps a finished template. @param packages digest of its packages; undefined for none. */
  async finish(name: string, digest: string, packages: string | undefined): Promise<void> {
    const path = this.#path(name, digest);
    if (packages !== undefined) await this.#host.run("zfs", ["set", `${PACKAGES}=${packages}`, path]);
    await zfsUntilFree(this.#host, ["unmount", path]);
    await this.#host.run("zfs", ["set", "mountpoint=none", path]);
    // Last step: the snapshot shows that the template is finished.
    await this.#host.run("zfs", ["snapshot", `${path}@${digest}`]);
  }

  /** Makes it the template of new sandboxes. */
  async choose(name: string, digest: string): Promise<void> {
    const leaf = this.#path(name, digest).slice(this.#parent.length + 1);
    await this.#host.run("zfs", ["set", `${CURRENT}${name}=${leaf}@${digest}`, this.#parent]);
  }

  /** Removes a template, finished or not. @returns false when it has clones. */
  async remove(dataset: string): Promise<boolean> {
    return this.#destroy(`${this.#parent}/${dataset}`);
  }

  async list(): Promise<readonly BuiltTemplate[]> {
    const properties = [BUILDER, NAME, PACKAGES, "used", "guid", "origin"];
    const found = await readTree(this.#host, { parent: this.#parent, properties, isCompared: true });
    const origins = new Set([...found.values()].map((each) => each.get("origin")));
    const templates: BuiltTemplate[] = [];
    for (const [path, own] of found) {
      const name = own.get(NAME);
      if (path.includes("@") || own.get(BUILDER) !== this.#builder || name === undefined) continue;
      const snapshot = [...found.keys()].find((each) => each.startsWith(`${path}@`));
      templates.push({
        name,
        dataset: path.slice(this.#parent.length + 1),
        snapshot,
        guid: snapshot === undefined ? undefined : found.get(snapshot)?.get("guid"),
        isCurrent: snapshot !== undefined && (await this.current(name)) === snapshot,
        isInUse: snapshot !== undefined && origins.has(snapshot),
        usedBytes: Number(own.get("used")),
        packages: own.get(PACKAGES),
      });
    }
    return templates;
  }

  async #destroy(path: string): Promise<boolean> {
    if ((await this.#builderOf(path)) !== this.#builder)
      throw new Error(`${path} was built by another installation`);
    return zfsUntilFree(this.#host, ["destroy", "-r", path]);
  }

  /** Undefined for a missing dataset. */
  async #builderOf(path: string): Promise<string | undefined> {
    const { code, stdout } = await this.#host.try("zfs", ["get", "-H", "-o", "value,source", BUILDER, path]);
    if (code !== 0) return undefined;
    const [value = "", source] = stdout.trim().split("\t");
    return isOwnValue(source) ? value : "";
  }

  #path(name: string, digest: string): string {
    return `${this.#parent}/template-${name}-${digest.slice(0, DIGITS_IN_NAME)}`;
  }
}
