import type { Limits, Sandbox, SandboxId, SnapshotId, Stats } from "../contract/backend.js";
import type { AdoptedProcess } from "../contract/process.js";
import type { EgressRules } from "../contract/egress-rules.js";
import type { TemplateBuild } from "./template-build.js";
import type { RecordedMount } from "./volume-mounts.js";

/** Lifecycle state. Only `running` serves requests. */
export type SandboxState = "creating" | "running" | "paused" | "killing";

export type OnTimeout = "kill" | "pause";

export type EndReason =
  | "killed"
  | "timed out"
  | "out of memory"
  | "out of disk"
  | "backend lost"
  | "server lost"
  | "moved"
  | "shutdown";

/** Identifies repeated requests for one creation. */
export interface Idempotency {
  /** The creator's key, unique within its tenant. */
  readonly key: string;
  /** Equal for equal requests. */
  readonly fingerprint: string;
}

/** Record of a sandbox in the ledger. Times are milliseconds since the Unix epoch. */
export interface SandboxRecord {
  readonly id: SandboxId;
  readonly owner: string;
  readonly backend: string;
  readonly template: string;
  /** Build of the template whose files it began with; undefined for a template that its backend has by itself. */
  readonly build?: TemplateBuild | undefined;
  /** Snapshot with whose files it began; undefined = those of its template. */
  readonly snapshot: SnapshotId | undefined;
  readonly state: SandboxState;
  readonly startedAtMs: number;
  /** Time of its automatic end or pause, or the removal of a paused one; undefined = never (the debug sandbox). */
  readonly endsAtMs: number | undefined;
  /** The requested life, which a resumption by traffic starts again. */
  readonly timeoutMs: number | undefined;
  readonly onTimeout: OnTimeout;
  /** False: that pause ends its processes and keeps its files. True when absent. */
  readonly keepsMemory?: boolean | undefined;
  /** True for a paused one whose processes were ended: it starts again with its files. */
  readonly isStopped?: boolean | undefined;
  /** True: a request resumes it when it is paused, and postpones its pause while it runs. */
  readonly autoResume: boolean;
  readonly metadata: Readonly<Record<string, string>>;
  /** Set by the creator; part of every process's environment. */
  readonly environment: Readonly<Record<string, string>>;
  /** Secret of its envd and code surfaces; undefined = open. */
  readonly accessToken: string | undefined;
  /**
   * Secret of its other ports, sent in `e2b-traffic-access-token`; undefined = open to clients that reach the server.
   */
  readonly trafficAccessToken: string | undefined;
  /** The Host header for programs on its ports, with `${PORT}` for the port; undefined = the client's. */
  readonly maskRequestHost: string | undefined;
  readonly limits: Limits;
  /** True while its backend applies these limits. */
  readonly isResizing?: boolean | undefined;
  readonly idempotency?: Idempotency | undefined;
  readonly allowInternetAccess: boolean;
  /** Rules for outgoing connections; undefined = no rules. */
  readonly egress: EgressRules | undefined;
  readonly mounts: readonly RecordedMount[];
}

/** A sandbox that the server holds: its record, its backend handle, and its end. */
export interface LiveSandbox {
  readonly record: SandboxRecord;
  /** The backend's handle. @throws SandboxError unavailable unless `running`. */
  readonly runtime: Sandbox;
  /** True when requests may be sent to it: it runs, or a request resumes it. */
  readonly isReachable: boolean;
  /** True while its processes are frozen, or may be: paused, or being paused, resumed or snapshotted. */
  readonly isFrozen: boolean;
  /** Requests to it that are being served. */
  readonly requests: number;
  /** Time of the last request's start or end, in milliseconds since the Unix epoch; its start when there was none. */
  readonly lastUsedAtMs: number;
  /** Resource usage, also while it is paused. @throws SandboxError unavailable before it ran and after its end. */
  stats(): Promise<Stats>;
  /** Processes from before this server adopted it, as `adoption` of its backend lists them, also while it is paused. */
  adopted(): Promise<readonly AdoptedProcess[]>;
  /**
   * Aborted with an EndReason as soon as the sandbox stops serving, before its teardown: sockets of its requests are
   * destroyed, and plugins drop their state. A pause that ends its processes aborts it, too, with another reason; a new
   * LiveSandbox then replaces this one.
   */
  readonly ended: AbortSignal;
}
