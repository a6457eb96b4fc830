import type { Limits, SandboxId, SnapshotId } from "../contract/backend.js";

/** An event in the life of a sandbox. */
export type SandboxEventType = "created" | "updated" | "paused" | "resumed" | "snapshotted" | "killed";

/** One thing that happened to a sandbox. Nothing in it is a secret. */
export interface SandboxEvent {
  /** Unique; the same for one event however often it is told. */
  readonly id: string;
  readonly type: SandboxEventType;
  /** Milliseconds since the Unix epoch. */
  readonly atMs: number;
  readonly sandboxId: SandboxId;
  /** The tenant that the sandbox belongs to. */
  readonly owner: string;
  readonly template: string;
  /** Snapshot with whose files it began; undefined = those of its template. */
  readonly snapshot: SnapshotId | undefined;
  readonly metadata: Readonly<Record<string, string>>;
  readonly detail: SandboxEventDetail;
}

/** Details of an event, by its type. */
export interface SandboxEventDetail {
  /** Why: an EndReason of `killed`, what asked for `paused` and `resumed`. */
  readonly reason?: string | undefined;
  /** The end that `updated` set, in milliseconds since the Unix epoch. */
  readonly endsAtMs?: number | undefined;
  /** The network rules that `updated` set. */
  readonly network?:
    | {
        readonly allowInternetAccess: boolean;
        readonly allowOut: readonly string[];
        readonly denyOut: readonly string[];
      }
    | undefined;
  /** The limits that `updated` set, all of them. */
  readonly limits?: Limits | undefined;
  /** Snapshot that was taken, of an event `snapshotted`. */
  readonly snapshot?: SnapshotId | undefined;
  /** The name that it was given. */
  readonly name?: string | undefined;
}
