import { setTimeout as sleep } from "node:timers/promises";
import { SandboxError } from "@coppice/core";
import type { SnapshotId } from "@coppice/core/backend";
import { failureOf, type Host, HostCommandError } from "../host/host.js";
import { isOwnValue, type PropertyTree, readTree } from "./property-tree.js";
import { REASONS } from "../reasons.js";

/**
 * State of a dataset. `connecting`: its sandbox runs and gets a network that it was created without. `stopped`: its
 * sandbox has no jail, or one that is being ended or created. `retained`: its sandbox is gone, but clones need its
 * blocks.
 */
export type DatasetState = "creating" | "running" | "connecting" | "stopped" | "destroying" | "retained";

export interface OwnedDataset {
  readonly name: string;
  readonly state: DatasetState;
  /** Undefined for a volume. */
  readonly template: string | undefined;
  /** As they were stored; undefined for a volume. */
  readonly limits: string | undefined;
  /** As it was stored; undefined for a sandbox of a template. */
  readonly image: string | undefined;
}

interface KeptSnapshot {
  /** `<dataset>@<snapshot>` */
  readonly full: string;
  /** As it was stored for the sandbox that it was taken of. */
  readonly image: string | undefined;
}

interface CloneOptions {
  /** `<dataset>@<snapshot>` */
  readonly origin: string;
  readonly mountPoint: string;
  /** Undefined for a clone that can only be read. */
  readonly refquotaMiB: number | undefined;
  readonly properties: Readonly<Record<string, string>>;
}

const PREFIX = "coppice:";
/** ZFS's own mark of a destroyed snapshot that stays until its last clone is gone. */
const DESTROYED = "defer_destroy";
const PROPERTIES = [
  ...["owner", "state", "template", "limits", "image", "snapshot"].map((name) => PREFIX + name),
  DESTROYED,
];
const BUSY_ATTEMPTS = 50;
const LONGEST_BUSY_PAUSE_MS = 200;
/** For what is unmounted, and can be busy for hours with a `zfs send`. */
const BUSY_ATTEMPTS_COLLECTING = 5;
/** Error messages of zfs(8) for a dataset in use; they differ between releases. */
const BUSY = /dataset is busy|umount failed|cannot unmount|Device busy/i;
const MISSING = /dataset does not exist|could not find any snapshots/;
const OURS = /^(e2b|volume|image|doctor)-[a-z0-9]+$/;
/** Name of the snapshot that sandboxes with an image are cloned from. */
const IMAGE = "image";
const NEEDED = /has dependent clones|has children|has snapshots/;

/**
 * ZFS datasets of one installation, all children of one parent. A property names the owner; datasets with another
 * owner, or none, are never changed. Needs only features that zfs(8) has had since 2011.
 */
export class Datasets {
  readonly parent: string;
  readonly #host: Host;
  readonly #owner: string;
  /** False while no retained dataset and no removed snapshot is known. */
  #hasRetained = true;
  /** Resolves when the current collection has ended. */
  #collecting: Promise<void> = Promise.resolve();
  /** Begins after the current one. */
  #nextCollection: Promise<void> | undefined;
  /** Retained, but without the mark, for which the pool had no room. */
  readonly #unmarked = new Set<string>();

  /** @param owner identifies this installation's datasets among others in the same pool. */
  constructor(host: Host, { parent, owner }: { readonly parent: string; readonly owner: string }) {
    this.#host = host;
    this.parent = parent;
    this.#owner = owner;
  }

  /** @throws SandboxError not_found when there is no such snapshot, already_exists */
  async clone(name: string, { origin, mountPoint, refquotaMiB, properties }: CloneOptions): Promise<void> {
    const own = { ...properties, owner: this.#owner, state: "creating" };
    const options = [
      refquotaMiB === undefined ? "readonly=on" : `refquota=${refquotaMiB}M`,
      `mountpoint=${mountPoint}`,
      ...Object.entries(own).map(([property, value]) => `${PREFIX}${property}=${value}`),
    ];
    try {
      await this.#host.run("zfs", [
        "clone",
        ...options.flatMap((option) => ["-o", option]),
        origin,
        this.#path(name),
      ]);
    } catch (error) {
      if (!(error instanceof HostCommandError)) throw error;
      if (MISSING.test(error.stderr))
        throw new SandboxError("snapshot_not_found", `there is no snapshot ${origin}`, { cause: error });
      if (/already exists/.test(error.stderr))
        throw new SandboxError(REASONS.dataset_exists, `dataset ${name} already exists`, { cause: error });
      throw error;
    }
  }

  async create(
    name: string,
    { mountPoint, refquotaMiB }: { readonly mountPoint: string; readonly refquotaMiB: number },
  ): Promise<void> {
    const options = [
      `refquota=${refquotaMiB}M`,
      `mountpoint=${mountPoint}`,
      `${PREFIX}owner=${this.#owner}`,
      `${PREFIX}state=creating`,
    ];
    const words = ["create", ...options.flatMap((option) => ["-o", option]), this.#path(name)];
    const result = await this.#host.try("zfs", words);
    if (/already exists/.test(result.stderr))
      throw new SandboxError(REASONS.dataset_exists, `dataset ${name} already exists`);
    if (result.code !== 0) throw failureOf("zfs", words, result);
  }

  async hasSnapshot(snapshot: string): Promise<boolean> {
    const { code, stderr } = await this.#host.try("zfs", ["get", "-H", "-o", "value", "type", snapshot]);
    if (code !== 0 && !MISSING.test(stderr)) throw new Error(`zfs get: ${stderr.trim()}`);
    return code === 0;
  }

  async set(name: string, property: string, value: string): Promise<void> {
    await this.#host.run("zfs", ["set", `${PREFIX}${property}=${value}`, this.#path(name)]);
  }

  /** Mounts a dataset at its mount point, if the host's restart unmounted it. */
  async mount(name: string): Promise<void> {
    const words = ["mount", this.#path(name)];
    const result = await this.#host.try("zfs", words);
    if (result.code !== 0 && !/already mounted/.test(result.stderr)) throw failureOf("zfs", words, result);
  }

  /** @throws SandboxError failed_precondition when it already uses more. */
  async limit(name: string, refquotaMiB: number): Promise<void> {
    const words = ["set", `refquota=${refquotaMiB}M`, this.#path(name)];
    const result = await this.#host.try("zfs", words);
    if (/less than current used/.test(result.stderr))
      throw new SandboxError("limits_below_use", "the sandbox uses more disk than that");
    if (result.code !== 0) throw failureOf("zfs", words, result);
  }

  /**
   * Bytes that datasets refer to, including those shared with their origins, by one command; missing datasets are left
   * out. With `used`, those that they and their snapshots alone have.
   */
  async usedBytes(
    names: readonly string[],
    property: "referenced" | "used" = "referenced",
  ): Promise<ReadonlyMap<string, number>> {
    if (names.length === 0) return new Map();
    const words = ["get", "-Hp", "-o", "name,value", property, ...names.map((name) => this.#path(name))];
    const result = await this.#host.try("zfs", words);
    const { code, stderr, stdout } = result;
    const isOther = stderr.split("\n").some((line) => line !== "" && !MISSING.test(line));
    if (code !== 0 && (isOther || stderr === "")) throw failureOf("zfs", words, result);
    return new Map(
      stdout.split("\n").flatMap((line) => {
        const [path = "", value] = line.split("\t");
        return value === undefined ? [] : [[path.slice(this.parent.length + 1), Number(value)] as const];
      }),
    );
  }

  /**
   * Datasets of this installation with a name prefix.
   * @param isCompared as `readTree`; for a start, which forgets what is left out.
   */
  async owned(prefix = "e2b-", isCompared = false): Promise<readonly OwnedDataset[]> {
    return this.#ownedIn(await this.#read(isCompared)).filter(({ name }) => name.startsWith(prefix));
  }

  async #read(isCompared = false): Promise<PropertyTree> {
    return readTree(this.#host, { parent: this.parent, properties: PROPERTIES, isCompared });
  }

  #ownedIn(tree: PropertyTree): readonly OwnedDataset[] {
    return [...tree].flatMap(([path, properties]) => {
      const name = path.slice(this.parent.length + 1);
      const of = (property: string) => properties.get(PREFIX + property);
      // One that was renamed by hand is no longer of ours.
      if (!OURS.test(name) || of("owner") !== this.#owner) return [];
      const state = (of("state") ?? "destroying") as DatasetState;
      return [{ name, state, template: of("template"), limits: of("limits"), image: of("image") }];
    });
  }

  /**
   * Destroys a dataset, mounted or not. One with clones stays unmounted until `collect`. A missing one is fine.
   * @throws SandboxError permission_denied for one of another owner.
   */
  async destroy(name: string): Promise<void> {
    const path = this.#path(name);
    if (!(await this.#isOwn(path))) return;
    // Its mount point would be in the way of the next dataset of that name.
    await zfsUntilFree(this.#host, ["unmount", "-f", path]);
    if (await this.#isDestroyed(path)) return;
    try {
      await this.#host.run("zfs", ["set", "mountpoint=none", path]);
      await this.set(name, "state", "retained");
      this.#unmarked.delete(name);
    } catch (error) {
      if (!(error instanceof SandboxError && error.reason === "disk_full")) throw error;
      // It looks abandoned: sweeps mark it once there is room.
      this.#unmarked.add(name);
    } finally {
      // A mark that seems to have failed may be there. Last: a collection that ran meanwhile has not seen it.
      this.#hasRetained = true;
    }
  }

  /** Makes a whole image of a dataset, which nothing changes any more. */
  async seal(name: string): Promise<void> {
    const path = this.#path(name);
    await zfsUntilFree(this.#host, ["unmount", "-f", path]);
    await this.#host.run("zfs", ["set", "mountpoint=none", path]);
    await this.#host.run("zfs", ["snapshot", this.imageSnapshot(name)]);
  }

  /** Makes a dataset the whole image `to`. When it rejects, the dataset has its name and mount point, but no mount. */
  async sealAs(name: string, to: string, mountPoint: string): Promise<void> {
    await zfsUntilFree(this.#host, ["unmount", "-f", this.#path(name)]);
    try {
      await zfsUntilFree(this.#host, ["rename", this.#path(name), this.#path(to)]);
      await this.seal(to);
    } catch (error) {
      // A command that was killed may have had its effect. What is missing is fine.
      await zfsUntilFree(this.#host, ["destroy", this.imageSnapshot(to)]);
      await zfsUntilFree(this.#host, ["rename", this.#path(to), this.#path(name)]);
      await this.#host.run("zfs", ["set", `mountpoint=${mountPoint}`, this.#path(name)]);
      throw error;
    }
  }

  imageSnapshot(name: string): string {
    return `${this.#path(name)}@${IMAGE}`;
  }

  async stateOf(name: string): Promise<string | undefined> {
    const words = ["get", "-H", "-o", "value", `${PREFIX}state`, this.#path(name)];
    const result = await this.#host.try("zfs", words);
    if (result.code === 0) return result.stdout.trim();
    if (MISSING.test(result.stderr)) return undefined;
    throw failureOf("zfs", words, result);
  }

  async snapshot(name: string, id: SnapshotId): Promise<void> {
    const path = `${this.#path(name)}@${checkedSnapshotId(id)}`;
    const words = ["snapshot", "-o", `${PREFIX}snapshot=kept`, path];
    const result = await this.#host.try("zfs", words);
    if (MISSING.test(result.stderr)) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    if (result.code !== 0) throw failureOf("zfs", words, result);
  }

  /** The kept snapshots, by id. @param isCompared as for `owned`. */
  async snapshots(isCompared = false): Promise<ReadonlyMap<SnapshotId, KeptSnapshot>> {
    return this.#snapshotsIn(await this.#read(isCompared), "kept");
  }

  /** Destroys a snapshot, or leaves that to ZFS and `collect`, after its last clone. A missing one is fine. */
  async removeSnapshot(id: SnapshotId): Promise<void> {
    const kept = (await this.snapshots()).get(id);
    if (kept === undefined) return;
    // Takes no room in a full pool, unlike the mark, which is for one that is busy.
    await zfsUntilFree(this.#host, ["destroy", "-d", kept.full], BUSY_ATTEMPTS_COLLECTING).catch(() =>
      this.#host.run("zfs", ["set", `${PREFIX}snapshot=removed`, kept.full]),
    );
    this.#hasRetained = true;
  }

  #snapshotsIn(tree: PropertyTree, mark: "kept" | "removed"): ReadonlyMap<SnapshotId, KeptSnapshot> {
    const owned = new Map(this.#ownedIn(tree).map(({ image, name }) => [`${this.parent}/${name}`, image]));
    return new Map(
      [...tree].flatMap(([full, properties]) => {
        const [path = "", id] = full.split("@");
        const isMarked = properties.get(`${PREFIX}snapshot`) === mark && properties.get(DESTROYED) !== "on";
        const isTaken = id !== undefined && isMarked && owned.has(path);
        return isTaken ? [[id, { full, image: owned.get(path) }] as const] : [];
      }),
    );
  }

  /**
   * Destroys removed snapshots and retained datasets that have no clones left. Nothing of what was so at the call stays:
   * a collection that began earlier may have met a clone that is gone by now, and another one follows it for all who wait.
   * @throws HostCommandError for the first that could not be destroyed, after all others.
   */
  collect(): Promise<void> {
    this.#nextCollection ??= this.#collecting.then(() => {
      this.#nextCollection = undefined;
      const collection = this.#collectRetained();
      this.#collecting = collection.catch(() => undefined);
      return collection;
    });
    return this.#nextCollection;
  }

  async #collectRetained(): Promise<void> {
    if (!this.#hasRetained) return;
    // A dataset retained meanwhile sets it again.
    this.#hasRetained = false;
    try {
      await this.#collect();
    } catch (error) {
      this.#hasRetained = true;
      throw error;
    }
  }

  async #collect(): Promise<void> {
    // A snapshot with clones goes with the last of them.
    const tree = await this.#read();
    const failures: unknown[] = [];
    const isGone = (destruction: Promise<boolean>) =>
      destruction.catch((error: unknown) => {
        failures.push(error);
        return true;
      });
    for (const { full } of this.#snapshotsIn(tree, "removed").values())
      await isGone(zfsUntilFree(this.#host, ["destroy", "-d", full], BUSY_ATTEMPTS_COLLECTING));
    const retained = this.#ownedIn(tree).filter(
      ({ name, state }) => state === "retained" || this.#unmarked.has(name),
    );
    // One may depend on another: repeat while that makes progress.
    for (let rest = retained; rest.length > 0;) {
      const left: OwnedDataset[] = [];
      for (const each of rest) {
        const destruction = this.#isDestroyed(this.#path(each.name), BUSY_ATTEMPTS_COLLECTING);
        if (await isGone(destruction)) this.#unmarked.delete(each.name);
        else left.push(each);
      }
      if (left.length > 0) this.#hasRetained = true;
      if (left.length === rest.length) break;
      rest = left;
    }
    if (failures.length > 0) throw failures[0];
  }

  /** Destroys a dataset, after its own snapshot if it is an image. @returns false when clones or snapshots need it. */
  async #isDestroyed(path: string, attempts = BUSY_ATTEMPTS): Promise<boolean> {
    const isImage = path.startsWith(`${this.parent}/image-`);
    const paths = isImage ? [`${path}@${IMAGE}`, path] : [path];
    for (const each of paths) {
      if (!(await zfsUntilFree(this.#host, ["destroy", each], attempts))) return false;
    }
    return true;
  }

  async #isOwn(path: string): Promise<boolean> {
    const words = ["get", "-H", "-o", "value,source", `${PREFIX}owner`, path];
    const { code, stdout, stderr } = await this.#host.try("zfs", words);
    if (code !== 0 && MISSING.test(stderr)) return false;
    if (code !== 0) throw new Error(`zfs get: ${stderr.trim()}`);
    const [owner, source] = stdout.trim().split("\t");
    if (owner === this.#owner && isOwnValue(source)) return true;
    throw new SandboxError(REASONS.dataset_not_owned, `dataset ${path} belongs to another installation`);
  }

  #path(name: string): string {
    if (!OURS.test(name)) throw new Error(`'${name}' is no dataset of ours`);
    return `${this.parent}/${name}`;
  }
}

/**
 * Retries a command of zfs while the dataset is busy. A missing dataset is fine.
 * @returns false when clones need it. @throws HostCommandError
 */
async function zfsUntilFree(
  host: Host,
  words: readonly string[],
  attempts = BUSY_ATTEMPTS,
): Promise<boolean> {
  for (let attempt = 1; ; attempt++) {
    const result = await host.try("zfs", words);
    const { code, stderr } = result;
    if (code === 0 || MISSING.test(stderr) || /not currently mounted|not mounted/.test(stderr)) return true;
    if (NEEDED.test(stderr)) return false;
    if (!BUSY.test(stderr) || attempt === attempts) throw failureOf("zfs", words, result);
    await sleep(Math.min(5 * attempt, LONGEST_BUSY_PAUSE_MS));
  }
}

function checkedSnapshotId(id: SnapshotId): SnapshotId {
  if (!/^[a-z0-9]+$/.test(id)) throw new Error(`'${id}' is no id of a snapshot`);
  return id;
}
