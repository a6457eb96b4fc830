import { z } from "zod";
import type { Inferred } from "../../sqlite/table.js";
import { createToken } from "../../kernel/token.js";
import type { VolumeId } from "../contract/backend.js";
import type { Files } from "../contract/files.js";

export type VolumeRecord = Inferred<typeof volumeRecord>;

export const volumeRecord = z.object({
  id: z.string(),
  owner: z.string(),
  /** Only a `ready` one is found. */
  state: z.enum(["making", "ready", "removing"]),
  /** Unique among those of its owner that are not being removed. */
  name: z.string(),
  backend: z.string(),
  sizeMiB: z.number(),
  /** Secret that protects its contents. */
  token: z.string(),
  createdAtMs: z.number(),
});

export interface CreateVolume {
  /** Letters, digits, `-` and `_`. */
  readonly name: string;
  /** `sandboxes.volumeSize` when absent. */
  readonly sizeMiB?: number | undefined;
}

/** The volumes of this server: directories that sandboxes share and that outlive them. */
export interface Volumes {
  /** The volumes of one tenant; those of others are unknown to it. */
  of(tenant: string): TenantVolumes;
  /** True for a volume of any tenant, until it is removed. */
  knows(id: VolumeId): boolean;
  /** @throws SandboxError unauthenticated, with one message for a wrong token and for an unknown volume. */
  requireToken(id: VolumeId, token: string): void;
  /**
   * Opens the contents of a volume for a bearer of its token.
   * @throws SandboxError as `requireToken`; unavailable when too many are open; the backend's errors.
   */
  open(id: VolumeId, token: string): Promise<OpenVolume>;
}

/** A volume in use, until it is disposed of. */
export interface OpenVolume extends AsyncDisposable {
  /** Its files: `/` is the volume itself. */
  readonly files: Files;
}

/** Operations of one tenant on volumes. */
export interface TenantVolumes {
  /**
   * Makes an empty volume on the default backend.
   * @throws SandboxError invalid_argument (name, size), already_exists, failed_precondition (the backend keeps no
   * volumes), resource_exhausted (`sandboxes.maximumVolumes`), unavailable when it failed: nothing is left of it then.
   */
  create(wanted: CreateVolume): Promise<VolumeRecord>;
  /** The volume of that id, or else of that name. Undefined when there is none. */
  find(reference: string): VolumeRecord | undefined;
  /** @throws SandboxError not_found */
  get(id: VolumeId): VolumeRecord;
  list(): readonly VolumeRecord[];
  /** Bytes that a volume occupies. @throws SandboxError not_found */
  usage(id: VolumeId): Promise<number>;
  /**
   * Removes a volume: it can no longer be found or mounted, and its name is free. Sandboxes that mount it keep it; its
   * contents are removed with the last of them.
   * @throws SandboxError not_found, unavailable when the backend failed for now: clients cannot use it any more, and
   * the next start tries again.
   */
  remove(id: VolumeId): Promise<void>;
}

export const Volumes = createToken<Volumes>("volumes");
