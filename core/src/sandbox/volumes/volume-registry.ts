import { MEBIBYTE } from "../../config/units.js";
import { SandboxError } from "../../kernel/errors.js";
import type { VolumeId } from "../contract/backend.js";
import type { CountedStorage } from "../model/admissions.js";
import type { SandboxServices } from "../ledger/sandbox-services.js";
import { digestOf, isDigestOf, newAccessToken, newId } from "../../kernel/secrets.js";
import { RemovableRecords } from "../backends/teardown.js";
import type { VolumeContents } from "./volume-contents.js";
import type { CreateVolume, OpenVolume, TenantVolumes, VolumeRecord, Volumes } from "../model/volumes.js";

export interface VolumeRegistryOptions extends SandboxServices {
  /** True when a sandbox that is not completely removed has it. */
  readonly isMounted: (id: VolumeId) => boolean;
  /** @throws SandboxError resource_exhausted by a quota */
  readonly admitStorage: (tenant: string, wanted: CountedStorage) => void;
  readonly contents: Pick<VolumeContents, "open" | "close">;
}

const NAME = /^[A-Za-z0-9_-]{1,128}$/;
// Shorter than any token.
const NO_TOKEN = "none";

/** The volumes of this server, written to the ledger before a backend acts. */
export class VolumeRegistry implements Volumes {
  readonly #options: VolumeRegistryOptions;
  readonly #records: RemovableRecords<VolumeRecord>;

  constructor(options: VolumeRegistryOptions) {
    this.#options = options;
    this.#records = new RemovableRecords(options.teardown, "volume");
  }

  of(tenant: string): TenantVolumes {
    const get = (id: VolumeId): VolumeRecord => this.#get(tenant, id);
    return {
      create: (wanted) => this.#create(tenant, wanted),
      find: (reference) => this.#find(tenant, reference),
      get,
      list: () => this.#list(tenant),
      usage: async (id) => (await this.#options.backends.get(get(id).backend).volumes?.usage(id)) ?? 0,
      remove: async (id) => this.#remove(this.#removable(tenant, id)),
    };
  }

  /** A tenant's volumes for quotas, also those that are not completely removed. */
  counted(tenant: string): readonly CountedStorage[] {
    return [...this.#records.values()]
      .filter(({ owner }) => owner === tenant)
      .map(({ sizeMiB }) => ({ kind: "volume", sizeMiB }));
  }

  knows(id: VolumeId): boolean {
    return this.#records.get(id)?.state === "ready";
  }

  requireToken(id: VolumeId, token: string): void {
    this.#withToken(id, token);
  }

  async open(id: VolumeId, token: string): Promise<OpenVolume> {
    return this.#options.contents.open(this.#withToken(id, token));
  }

  /**
   * Brings the ledger and the backends into agreement after the sandboxes are adopted: removes incomplete volumes, and
   * removed ones that no sandbox mounts. Volumes that the ledger does not know stay, unreachable: each was in the
   * ledger once, so the ledger must be incomplete. Volumes whose backend is no longer enabled stay as they are.
   */
  async reconcile(): Promise<void> {
    const { backends, ledger, isMounted, log } = this.#options;
    const records = await ledger.volumes();
    await Promise.all(
      backends.all().map(async (backend) => {
        const kept = new Set(await backend.volumes?.list());
        for (const record of records.filter((one) => one.backend === backend.name)) {
          const isThere = kept.delete(record.id);
          const isWanted = record.state === "ready" || (record.state === "removing" && isMounted(record.id));
          if (isThere && isWanted) this.#records.set(record.id, record);
          else {
            if (record.state === "ready") log.error({ volume: record.id }, "a volume is lost");
            if (isThere) await backend.volumes?.remove(record.id);
            await ledger.removeVolume(record.id);
          }
        }
        for (const id of kept) {
          log.warn(
            { volume: id, backend: backend.name },
            "a volume that the ledger does not know is left alone",
          );
        }
      }),
    );
  }

  /**
   * Call it when a sandbox with these volumes is completely removed: finishes removals that waited for it. Never
   * rejects.
   */
  async released(ids: readonly VolumeId[]): Promise<void> {
    for (const id of new Set(ids)) {
      const record = this.#records.get(id);
      if (record?.state !== "removing" || this.#options.isMounted(id) || this.#records.isBeingRemoved(id))
        continue;
      // A failure is logged and tried again.
      await this.#discard(record).catch(() => {});
    }
  }

  #find(tenant: string, reference: string): VolumeRecord | undefined {
    const record = this.#records.get(reference);
    if (record?.owner === tenant && record.state === "ready") return record;
    return this.#list(tenant).find(({ name }) => name === reference);
  }

  #get(tenant: string, id: VolumeId): VolumeRecord {
    const record = this.#records.get(id);
    if (record?.owner === tenant && record.state === "ready") return record;
    throw new SandboxError("volume_not_found", `volume '${id}' not found`);
  }

  /** As `#get`, also for one whose removal failed, so that a repeated request reports its state. */
  #removable(tenant: string, id: VolumeId): VolumeRecord {
    const record = this.#records.get(id);
    return record?.owner === tenant && this.#records.isBeingRemoved(id) ? record : this.#get(tenant, id);
  }

  #withToken(id: VolumeId, token: string): VolumeRecord {
    const record = this.#records.get(id);
    // Compared in any case: the answer for an unknown volume takes as long.
    const isRight = isDigestOf(digestOf(record?.token ?? NO_TOKEN), token);
    if (record?.state === "ready" && isRight) return record;
    throw new SandboxError("volume_token_invalid", "there is no such volume, or this is not its token");
  }

  #list(tenant: string): readonly VolumeRecord[] {
    return this.#records.readyOf(tenant).toSorted((a, b) => (a.name < b.name ? -1 : 1));
  }

  async #create(owner: string, { name, sizeMiB }: CreateVolume): Promise<VolumeRecord> {
    const { admitStorage, backends, settings, tenants, clock, ledger, log } = this.#options;
    if (!NAME.test(name)) throw new SandboxError("volume_name_invalid", "Invalid volume name");
    const most = Math.floor(settings.maximumVolumeSize / MEBIBYTE);
    const size = sizeMiB ?? Math.floor(settings.volumeSize / MEBIBYTE);
    if (!Number.isInteger(size) || size < 1 || size > most) {
      throw new SandboxError("volume_size_invalid", `the size of a volume is 1 to ${most} MiB`);
    }
    const backend = backends.default();
    if (backend.volumes === undefined) {
      throw new SandboxError(
        "volumes_unsupported",
        `backend '${backend.name}' on this host does not support volumes`,
      );
    }
    const all = [...this.#records.values()];
    if (all.some((one) => one.owner === owner && one.name === name && one.state !== "removing")) {
      throw new SandboxError("volume_exists", `Volume with name '${name}' already exists`);
    }
    const own = all.filter((one) => one.owner === owner);
    const shared = { most: settings.maximumVolumes, used: all.length, own: own.length };
    const refusal = tenants.refusal({ tenant: owner, ...shared });
    if (refusal !== undefined) {
      const text = `you have reached the maximum number of volumes (${refusal}): see sandboxes.maximumVolumes`;
      throw new SandboxError("volume_limit_reached", text);
    }
    admitStorage(owner, { kind: "volume", sizeMiB: size });
    const record: VolumeRecord = {
      id: newId("volume"),
      owner,
      state: "making",
      name,
      backend: backend.name,
      sizeMiB: size,
      token: newAccessToken(),
      createdAtMs: clock.now(),
    };
    // Set before the first await: of two calls with one name the second must see the first.
    this.#records.set(record.id, record);
    try {
      await ledger.writeVolume(record);
      await backend.volumes.make({ id: record.id, sizeMiB: size });
      const ready: VolumeRecord = { ...record, state: "ready" };
      await ledger.writeVolume(ready);
      this.#records.set(record.id, ready);
      log.info({ volume: record.id, backend: backend.name, sizeMiB: size }, "volume created");
      return ready;
    } catch (error) {
      log.error({ volume: record.id, err: error }, "making a volume failed");
      // All or nothing is the backend's promise, but not that of the ledger.
      await this.#discard(record).catch(() => {});
      throw new SandboxError("volume_failed", `no volume '${name}' could be made`, { cause: error });
    }
  }

  async #remove(record: VolumeRecord): Promise<void> {
    const { contents, ledger, isMounted, log } = this.#options;
    if (this.#records.isBeingRemoved(record.id) || !isMounted(record.id)) return this.#discard(record);
    const removing: VolumeRecord = { ...record, state: "removing" };
    this.#records.set(record.id, removing);
    try {
      await ledger.writeVolume(removing);
    } catch (error) {
      this.#records.set(record.id, record);
      throw error;
    }
    await contents.close(record.id);
    log.info({ volume: record.id }, "volume removed; its data stays until no sandbox has it");
    // Its last sandbox may have ended meanwhile.
    await this.released([record.id]);
  }

  /** As `RemovableRecords.discard`. */
  #discard(record: VolumeRecord): Promise<void> {
    const { backends, contents, ledger, log } = this.#options;
    return this.#records.discard(record, async (removing) => {
      const { id, backend } = removing;
      await ledger.writeVolume(removing);
      await contents.close(id);
      await backends.get(backend).volumes?.remove(id);
      await ledger.removeVolume(id);
      log.info({ volume: id }, "volume removed");
    });
  }
}
