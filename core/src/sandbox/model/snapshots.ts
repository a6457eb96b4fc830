import { z } from "zod";
import type { Inferred } from "../../sqlite/table.js";
import { createToken } from "../../kernel/token.js";
import type { SandboxId, SnapshotId } from "../contract/backend.js";
import type { LiveSandbox } from "./live-sandbox.js";
import type { ReadinessProbe } from "./readiness-probe.js";
import { limits, templateBuild } from "./template-build.js";

/** A snapshot as the ledger keeps it. */
export type SnapshotRecord = Inferred<typeof snapshotRecord>;

export const snapshotRecord = z.object({
  id: z.string(),
  owner: z.string(),
  /** Only a `ready` one is found. */
  state: z.enum(["taking", "ready", "removing"]),
  /** The name under which clients find it, too; it belongs to the newest snapshot so named. */
  name: z.string().optional(),
  /** True for the temporary base of a fork: hidden from clients, and not kept by the next server. */
  isTemporary: z.boolean().default(false),
  backend: z.string(),
  template: z.string(),
  /** Build of the template that its sandbox was made from, if it was built. */
  build: templateBuild.optional(),
  /** The sandbox that it was taken of. It may have ended. */
  sandboxId: z.string(),
  takenAtMs: z.number(),
  /** Limits of its sandbox, the default for sandboxes made from it. */
  limits,
});

export interface ForkRequest {
  readonly count: number;
  readonly timeoutMs: number;
  readonly readinessProbe?: ReadinessProbe | undefined;
}

/** One sandbox of a fork, or why it could not be made. */
export type Forked = { readonly sandbox: LiveSandbox } | { readonly error: unknown };

/** The snapshots of this server: file systems of sandboxes as of one moment, without memory. */
export interface Snapshots {
  /** The snapshots of one tenant and its sandboxes; those of others are unknown to it. */
  of(tenant: string): TenantSnapshots;
}

/** Operations of one tenant on snapshots. */
export interface TenantSnapshots {
  /**
   * Keeps the current files of a running or paused sandbox, which is frozen meanwhile.
   * @param name a template reference; `default` is its tag.
   * @throws SandboxError not_found, invalid_argument (the name), already_exists (a template has the name),
   * failed_precondition (its backend cannot), resource_exhausted (`sandboxes.maximumSnapshots`), aborted (another
   * change is under way), unavailable when it failed: nothing is left of the snapshot then.
   */
  take(id: SandboxId, name?: string): Promise<SnapshotRecord>;
  /** The snapshot with this id or name. Undefined when there is none. */
  find(reference: string): SnapshotRecord | undefined;
  /** Ready snapshots, newest first. */
  list(): readonly SnapshotRecord[];
  /**
   * Removes a snapshot. Sandboxes made from it live on.
   * @throws SandboxError not_found, unavailable when the backend failed for now: clients cannot use it any more, and
   * the next start tries again.
   */
  remove(id: SnapshotId): Promise<void>;
  /**
   * Makes `count` sandboxes with the files and the creation options of a sandbox. Each has a life of `timeoutMs`, its
   * own secrets, and is ready by `readinessProbe` or its template's probe; the other sandbox's probe may depend on its
   * processes.
   * @throws SandboxError as `take`; a sandbox that cannot be made is an entry with its error.
   */
  fork(id: SandboxId, wanted: ForkRequest, signal?: AbortSignal): Promise<readonly Forked[]>;
  /**
   * Calls `use` with a temporary snapshot of a sandbox, which is removed afterwards.
   * @throws SandboxError as `take`, or what `use` throws
   */
  lend<T>(id: SandboxId, use: (snapshot: SnapshotRecord) => Promise<T>): Promise<T>;
}

export const Snapshots = createToken<Snapshots>("snapshots");
