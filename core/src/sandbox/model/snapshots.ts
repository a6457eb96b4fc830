import { createToken } from "../../kernel/token.js";
import type { Limits, SandboxId, SnapshotId } from "../contract/backend.js";
import type { LiveSandbox } from "./live-sandbox.js";
import type { ReadinessProbe } from "./readiness-probe.js";

/** Where a snapshot is in its life. Only a `ready` one is found. */
export type SnapshotState = "taking" | "ready" | "removing";

/** Record of a snapshot in the ledger. */
export interface SnapshotRecord {
  readonly id: SnapshotId;
  /** The tenant that it belongs to. */
  readonly owner: string;
  readonly state: SnapshotState;
  /** The name under which clients find it, too; the newest snapshot of a name has it. */
  readonly name: string | undefined;
  /** True for one that a fork stands on until it is done: nobody is shown it, and no server takes it over. */
  readonly isTemporary: boolean;
  readonly backend: string;
  readonly template: string;
  /** The sandbox it was taken of, which may be gone. */
  readonly sandboxId: SandboxId;
  readonly takenAtMs: number;
  /** Limits of its sandbox: sandboxes made from it get the same where they ask for none. */
  readonly limits: Limits;
}

/** Options of a fork. */
export interface ForkRequest {
  readonly count: number;
  readonly timeoutMs: number;
  readonly readinessProbe?: ReadinessProbe | undefined;
}

/** One sandbox of a fork, or why it could not be made. */
export type Forked = { readonly sandbox: LiveSandbox } | { readonly error: unknown };

/** The snapshots of this server: what file systems of sandboxes were at one moment. Nothing of their memory. */
export interface Snapshots {
  /** Those of one tenant, and of its sandboxes: others' are answered as if they had never been. */
  of(tenant: string): TenantSnapshots;
}

/** Operations of one tenant on snapshots. */
export interface TenantSnapshots {
  /**
   * Keeps the files of a sandbox, running or paused, as they are now. It goes on; while that takes it stands still.
   * @param name a template reference; `default` is its tag.
   * @throws SandboxError not_found, invalid_argument (the name), already_exists (a template has the name),
   * failed_precondition (its backend cannot), resource_exhausted (`sandboxes.maximumSnapshots`), aborted (it is
   * being paused, snapshotted, made or killed), unavailable when that failed: then nothing is left of it.
   */
  take(id: SandboxId, name?: string): Promise<SnapshotRecord>;
  /** The snapshot that a template reference means: its id or its name. Undefined when there is none. */
  find(reference: string): SnapshotRecord | undefined;
  /** Those that are ready, newest first. */
  list(): readonly SnapshotRecord[];
  /**
   * Removes a snapshot. Sandboxes made from it live on.
   * @throws SandboxError not_found, unavailable when the backend failed for now: then it is gone for everybody,
   * and the next start tries again.
   */
  remove(id: SnapshotId): Promise<void>;
  /**
   * Makes `count` sandboxes that begin with the files of a sandbox, and with what it was created with: metadata,
   * environment, limits and the rest. Each has a life of `timeoutMs` and secrets of its own, and is ready as
   * `readinessProbe` says, or its template's: what was asked of the other one may be true of its processes alone.
   * @throws SandboxError what `take` throws; a sandbox that cannot be made is an entry with its error.
   */
  fork(id: SandboxId, wanted: ForkRequest, signal?: AbortSignal): Promise<readonly Forked[]>;
}

export const Snapshots = createToken<Snapshots>("snapshots");
