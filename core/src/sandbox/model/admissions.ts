import { createToken } from "../../kernel/token.js";
import type { SandboxRecord } from "./live-sandbox.js";

/** A sandbox as quotas count it. */
export type CountedSandbox = Pick<SandboxRecord, "id" | "limits">;

/**
 * Admits a new sandbox, or higher limits, by returning; refuses by throwing a SandboxError. Runs synchronously before
 * the next decision, so no other creation can slip in.
 * @param wanted the resulting record; in the state `creating`, unless limits of an existing one are raised.
 * @param existing the owner's other sandboxes, until they are completely removed: those of this server, or of all.
 * @returns what is to be done once the sandbox is admitted, if anything: a check alone has no effects.
 */
export type AdmissionCheck = (
  wanted: SandboxRecord,
  existing: readonly CountedSandbox[],
) => (() => void) | undefined;

/** A volume or a snapshot as quotas count it. */
export interface CountedStorage {
  readonly kind: "volume" | "snapshot";
  /** Most that it may take up. */
  readonly sizeMiB: number;
}

export interface Admission {
  readonly check: AdmissionCheck;
  /** False when the check admits an owner whatever it has already. */
  counts(owner: string): boolean;
  /**
   * Admits a new volume or snapshot by returning, as `check` admits sandboxes.
   * @param existing the owner's, until they are completely removed.
   */
  readonly checkStorage?: (
    owner: string,
    wanted: CountedStorage,
    existing: readonly CountedStorage[],
  ) => void;
}

/** Checks that run before a sandbox is created or its limits are raised. */
export interface Admissions {
  /** Adds a check; checks run in the order they were added. */
  add(admission: Admission): void;
}

export const Admissions = createToken<Admissions>("admissions");
