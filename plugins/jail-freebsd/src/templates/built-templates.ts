import { zfsUntilFree } from "../zfs/datasets.js";
import type { Host } from "../host/host.js";

/** A template that was built here, or was begun to be. */
export interface BuiltTemplate {
  readonly name: string;
  /** Of its dataset, below the parent. */
  readonly dataset: string;
  /** `<dataset>@<snapshot>` in full; undefined while it is not whole. */
  readonly snapshot: string | undefined;
  /** Of the snapshot: what is signed. */
  readonly guid: string | undefined;
  /** True when new sandboxes begin with it. */
  readonly isCurrent: boolean;
  /** True when datasets were cloned from it. */
  readonly isInUse: boolean;
  readonly usedBytes: number;
  /** Digest of its packages with their versions; undefined where it has none or is not whole. */
  readonly packages: string | undefined;
}

interface BeginOptions {
  readonly name: string;
  readonly digest: string;
  /** Where it is to be mounted while it is built. */
  readonly mountPoint: string;
}

/** Who built it, on the dataset of a template. Not the property of sandboxes: these are no sandboxes. */
const BUILDER = "coppice:builder";
const NAME = "coppice:name";
const PACKAGES = "coppice:packages";
/** On the parent: which snapshot a name stands for. One property, so that it changes at one moment. */
const CURRENT = "coppice:template.";
const DIGITS_IN_NAME = 16;

/**
 * Templates that were built, as datasets beside those of sandboxes: `template-<name>-<digest>@<digest>`. What is
 * of another builder is never touched.
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

  /** The snapshot that a name stands for, in full; undefined when none was built. */
  async current(name: string): Promise<string | undefined> {
    if (!/^[a-z0-9][a-z0-9._-]*$/.test(name)) return undefined;
    const words = ["get", "-H", "-o", "value", CURRENT + name, this.#parent];
    const value = (await this.#host.run("zfs", words)).trim();
    return value === "-" || value === "" ? undefined : `${this.#parent}/${value}`;
  }

  /** Makes an empty dataset for a template, in place of one that was not finished. @returns its full name. */
  async begin({ name, digest, mountPoint }: BeginOptions): Promise<string> {
    const path = this.#path(name, digest);
    if ((await this.#builderOf(path)) !== undefined) await this.#destroy(path);
    const properties = [`mountpoint=${mountPoint}`, `${NAME}=${name}`, `${BUILDER}=${this.#builder}`];
    await this.#host.run("zfs", ["create", ...properties.flatMap((each) => ["-o", each]), path]);
    return path;
  }

  /** True when a template with that digest was built whole. */
  async isWhole(name: string, digest: string): Promise<boolean> {
    const path = `${this.#path(name, digest)}@${digest}`;
    return (await this.#host.try("zfs", ["get", "-H", "-o", "value", "type", path])).code === 0;
  }

  /** Keeps what was built, out of sight. @param packages what tells them from others; undefined for none. */
  async finish(name: string, digest: string, packages: string | undefined): Promise<void> {
    const path = this.#path(name, digest);
    if (packages !== undefined) await this.#host.run("zfs", ["set", `${PACKAGES}=${packages}`, path]);
    await zfsUntilFree(this.#host, ["unmount", path]);
    await this.#host.run("zfs", ["set", "mountpoint=none", path]);
    // The last step: who sees the snapshot sees all of it.
    await this.#host.run("zfs", ["snapshot", `${path}@${digest}`]);
  }

  /** Has sandboxes of that template begin with it from now on. */
  async choose(name: string, digest: string): Promise<void> {
    const leaf = this.#path(name, digest).slice(this.#parent.length + 1);
    await this.#host.run("zfs", ["set", `${CURRENT}${name}=${leaf}@${digest}`, this.#parent]);
  }

  /** Gives up what was begun, or built. @returns false where datasets were cloned from it. */
  async remove(dataset: string): Promise<boolean> {
    return this.#destroy(`${this.#parent}/${dataset}`);
  }

  async list(): Promise<readonly BuiltTemplate[]> {
    const properties = `${BUILDER},${NAME},${PACKAGES},used,guid,origin`;
    const words = ["get", "-Hp", "-r", "-o", "name,property,value,source", properties, this.#parent];
    const found = new Map<string, Map<string, string>>();
    for (const line of (await this.#host.run("zfs", words)).split("\n")) {
      const [path = "", property = "", value = "", source = ""] = line.split("\t");
      // Of the snapshot it is inherited from its dataset; what that has from its parent is not its own.
      if ((property === BUILDER || property === PACKAGES) && source !== "local") continue;
      if (!found.has(path)) found.set(path, new Map());
      found.get(path)?.set(property, value);
    }
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
      throw new Error(`${path} was built by somebody else`);
    return zfsUntilFree(this.#host, ["destroy", "-r", path]);
  }

  /** Undefined for a dataset that is not there. */
  async #builderOf(path: string): Promise<string | undefined> {
    const { code, stdout } = await this.#host.try("zfs", ["get", "-H", "-o", "value,source", BUILDER, path]);
    if (code !== 0) return undefined;
    const [value = "", source] = stdout.trim().split("\t");
    return source === "local" ? value : "";
  }

  #path(name: string, digest: string): string {
    return `${this.#parent}/template-${name}-${digest.slice(0, DIGITS_IN_NAME)}`;
  }
}
