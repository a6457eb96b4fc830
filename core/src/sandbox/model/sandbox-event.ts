import { uuidOf } from "../../kernel/uuid-of.js";
import type { Limits, SandboxId, SnapshotId } from "../contract/backend.js";
import type { EgressRules } from "../contract/egress-rules.js";

export type SandboxEventType = "created" | "updated" | "paused" | "resumed" | "snapshotted" | "killed";

/** An event in the life of a sandbox. It contains no secrets. */
export interface SandboxEvent {
  /** Unique; the same for every delivery of one event. */
  readonly id: string;
  readonly type: SandboxEventType;
  /** Milliseconds since the Unix epoch. */
  readonly atMs: number;
  readonly sandboxId: SandboxId;
  readonly owner: string;
  readonly template: string;
  /** A UUID of a build of the template; undefined for a template that its backend has by itself. */
  readonly build?: string | undefined;
  /** Snapshot that the sandbox started from; undefined when it started from its template. */
  readonly snapshot: SnapshotId | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly detail: SandboxEventDetail;
}

export interface SandboxEventDetail {
  /** An EndReason of `killed`, the trigger of `paused` and `resumed`. */
  readonly reason?: string | undefined;
  /** The end that `updated` set, in milliseconds since the Unix epoch. */
  readonly endsAtMs?: number | undefined;
  readonly network?: (EgressRules & { readonly allowInternetAccess: boolean }) | undefined;
  /** The complete limits after an `updated` event that changes limits, unchanged ones included. */
  readonly limits?: Limits | undefined;
  /** The snapshot of a `snapshotted` event. */
  readonly snapshot?: SnapshotId | undefined;
  /** Name of that snapshot. */
  readonly name?: string | undefined;
}

/** A UUID for the `killed` event of a sandbox, which ends once: the same one, whichever servers of a fleet tell it. */
export function endEventId(sandboxId: SandboxId): string {
  return uuidOf(`end of ${sandboxId}`);
}
