import { createToken } from "../../kernel/token.js";
import type { VolumeId } from "../contract/backend.js";
import type { Files } from "../contract/files.js";

/** Where a volume is in its life. Only a `ready` one is found. */
export type VolumeState = "making" | "ready" | "removing";

/** Record of a volume in the ledger. */
export interface VolumeRecord {
  readonly id: VolumeId;
  /** The tenant that it belongs to. */
  readonly owner: string;
  readonly state: VolumeState;
  /** Unique among those of its owner that are not being removed. */
  readonly name: string;
  readonly backend: string;
  readonly sizeMiB: number;
  /** Secret that its contents ask for. */
  readonly token: string;
  readonly createdAtMs: number;
}

/** Options of a new volume. */
export interface CreateVolume {
  /** Letters, digits, `-` and `_`. */
  readonly name: string;
  /** `sandboxes.volumeSize` when absent. */
  readonly sizeMiB?: number | undefined;
}

/** The volumes of this server: directories that sandboxes share and that outlive them. */
export interface Volumes {
  /** Those of one tenant: others' are answered as if they had never been. */
  of(tenant: string): TenantVolumes;
  /** @throws SandboxError unauthenticated for a wrong token and for a volume that there is not, in the same words. */
  requireToken(id: VolumeId, token: string): void;
  /**
   * Opens what is in a volume for whoever has its token.
   * @throws SandboxError as `requireToken`; unavailable when too many are open, or what the backend threw.
   */
  open(id: VolumeId, token: string): Promise<OpenVolume>;
}

/** A volume in use. Disposing of it ends that. */
export interface OpenVolume extends AsyncDisposable {
  /** Its files: `/` is the volume itself. */
  readonly files: Files;
}

/** Operations of one tenant on volumes. */
export interface TenantVolumes {
  /**
   * Makes an empty volume, on the backend that makes sandboxes whose template names none.
   * @throws SandboxError invalid_argument (name, size), already_exists, failed_precondition (the backend keeps no
   * volumes), resource_exhausted (`sandboxes.maximumVolumes`), unavailable when that failed: then nothing is left of it.
   */
  create(wanted: CreateVolume): Promise<VolumeRecord>;
  /** The volume of that id, or else of that name. Undefined when there is none. */
  find(reference: string): VolumeRecord | undefined;
  /** @throws SandboxError not_found */
  get(id: VolumeId): VolumeRecord;
  /** Those that are ready, by their names. */
  list(): readonly VolumeRecord[];
  /** Bytes that a volume takes up. @throws SandboxError not_found */
  usage(id: VolumeId): Promise<number>;
  /**
   * Removes a volume: it is found and mounted no more, and its name is free. Sandboxes that have it keep it; what
   * is in it goes with the last of them.
   * @throws SandboxError not_found, unavailable when the backend failed for now: then it is gone for everybody,
   * and the next start tries again.
   */
  remove(id: VolumeId): Promise<void>;
}

export const Volumes = createToken<Volumes>("volumes");
