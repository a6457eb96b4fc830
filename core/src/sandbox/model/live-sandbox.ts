import type { Limits, Sandbox, SandboxId, SnapshotId, Stats } from "../contract/backend.js";
import type { AdoptedProcess } from "../contract/process.js";
import type { EgressRules } from "../contract/egress-rules.js";
import type { RecordedMount } from "./volume-mounts.js";

/** Where a sandbox is in its life. Only `running` serves requests. */
export type SandboxState = "creating" | "running" | "paused" | "killing";

/** Action at the end of a sandbox's time-out. */
export type OnTimeout = "kill" | "pause";

/** Why a sandbox is gone. */
export type EndReason =
  | "killed"
  | "timed out"
  | "out of memory"
  | "out of disk"
  | "backend lost"
  | "shutdown";

/** Key by which a repeated creation is recognised. */
export interface Idempotency {
  /** Its creator's, among those of its tenant. */
  readonly key: string;
  /** The same for the same request. */
  readonly fingerprint: string;
}

/** Record of a sandbox in the ledger. Times are milliseconds since the Unix epoch. */
export interface SandboxRecord {
  readonly id: SandboxId;
  /** The tenant that it belongs to. */
  readonly owner: string;
  readonly backend: string;
  readonly template: string;
  /** Snapshot with whose files it began; undefined = those of its template. */
  readonly snapshot: SnapshotId | undefined;
  readonly state: SandboxState;
  readonly startedAtMs: number;
  /** When it ends or pauses by itself, of a paused one when it is removed; undefined = never (the debug sandbox). */
  readonly endsAtMs: number | undefined;
  /** The life that its creator asked for: what a resumption by traffic gives it again. */
  readonly timeoutMs: number | undefined;
  readonly onTimeout: OnTimeout;
  /** False: that pause ends its processes and keeps its files. True when absent. */
  readonly keepsMemory?: boolean | undefined;
  /** True for a paused one whose processes were ended: it begins anew, with its files. */
  readonly isStopped?: boolean | undefined;
  /** True: a request resumes it when it is paused, and keeps it from pausing when it runs. */
  readonly autoResume: boolean;
  readonly metadata: Readonly<Record<string, string>>;
  /** Set by the creator; part of every process's environment. */
  readonly environment: Readonly<Record<string, string>>;
  /** Secret that its envd and code surfaces ask for; undefined = open. */
  readonly accessToken: string | undefined;
  /** Secret that its other ports ask for in `e2b-traffic-access-token`; undefined = open to whoever reaches the server. */
  readonly trafficAccessToken: string | undefined;
  /** The Host that programs on its ports get to see, `${PORT}` standing for the port; undefined = the client's. */
  readonly maskRequestHost: string | undefined;
  readonly limits: Limits;
  /** True while its backend is being told these limits. */
  readonly isResizing?: boolean | undefined;
  readonly idempotency?: Idempotency | undefined;
  readonly allowInternetAccess: boolean;
  /** Rules for connections to the outside; undefined = no rules. */
  readonly egress: EgressRules | undefined;
  /** The volumes that it has. */
  readonly mounts: readonly RecordedMount[];
}

/** A sandbox that the server holds: its record, its backend handle, and word of its end. */
export interface LiveSandbox {
  readonly record: SandboxRecord;
  /** The backend's handle. @throws SandboxError unavailable unless `running`. */
  readonly runtime: Sandbox;
  /** True when a request may be addressed to it: it runs, or the request makes it run again. */
  readonly isReachable: boolean;
  /** True while its processes stand still, or may do so: paused, or being paused, resumed or snapshotted. */
  readonly isFrozen: boolean;
  /** Resource usage, also while it is paused. @throws SandboxError unavailable before it ran and after its end. */
  stats(): Promise<Stats>;
  /** Processes from before this server adopted it, as `adoption` of its backend lists them, also while it is paused. */
  adopted(): Promise<readonly AdoptedProcess[]>;
  /**
   * Aborted with an EndReason as soon as the sandbox no longer serves, before anything of it is torn
   * down. Requests that serve it have their sockets destroyed, plugins drop what they keep about it.
   * A pause that ends its processes aborts it, too, with another reason; a new LiveSandbox then stands for the sandbox.
   */
  readonly ended: AbortSignal;
}
