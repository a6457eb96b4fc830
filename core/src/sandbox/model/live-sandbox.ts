import { z } from "zod";
import type { Inferred } from "../../sqlite/table.js";
import type { Sandbox, Stats, SandboxSpec } from "../contract/backend.js";
import type { AdoptedProcess } from "../contract/process.js";
import { limits, templateBuild } from "./template-build.js";
import { DEFAULT_TENANT } from "./tenant-records.js";
import { egressRulesOf } from "../contract/egress-rules.js";

/** Lifecycle state. Only `running` serves requests. */
export type SandboxState = SandboxRecord["state"];

export type OnTimeout = SandboxRecord["onTimeout"];

/** Identifies repeated requests for one creation. */
export type Idempotency = Inferred<typeof idempotency>;

const idempotency = z.object({
  /** The creator's key, unique within its tenant. */
  key: z.string(),
  /** Equal for equal requests. */
  fingerprint: z.string(),
});

export const egressRules = z.object({ allowOut: z.array(z.string()), denyOut: z.array(z.string()) });

/** A mounted volume, with the name that it had at the sandbox's creation. */
export type RecordedMount = Inferred<typeof recordedMount>;

const recordedMount = z.object({
  volume: z.string(),
  name: z.string(),
  path: z.string(),
  readOnly: z.boolean(),
});

/** Record of a sandbox in the ledger. Times are milliseconds since the Unix epoch. */
export type SandboxRecord = Inferred<typeof sandboxRecord>;

export const sandboxRecord = z.object({
  id: z.string(),
  // Absent in records from before tenants.
  owner: z.string().default(DEFAULT_TENANT),
  backend: z.string(),
  template: z.string(),
  /** Build of the template whose files it began with; undefined for a template that its backend has by itself. */
  build: templateBuild.optional(),
  /** Snapshot with whose files it began; undefined = those of its template. */
  snapshot: z.string().optional(),
  /** Of a fork: the temporary snapshot with whose files it began. `snapshot` is that of its original. */
  base: z.string().optional(),
  state: z.enum(["creating", "running", "paused", "killing"]),
  startedAtMs: z.number(),
  /** Time of its automatic end or pause, or the removal of a paused one; undefined = never (the debug sandbox). */
  endsAtMs: z.number().optional(),
  /** The requested life, which a resumption by traffic starts again. */
  timeoutMs: z.number().optional(),
  onTimeout: z.enum(["kill", "pause"]).default("kill"),
  /** False: that pause ends its processes and keeps its files. True when absent. */
  keepsMemory: z.boolean().optional(),
  /** True for a paused one whose processes were ended: it starts again with its files. */
  isStopped: z.boolean().optional(),
  /** True: a request resumes it when it is paused, and postpones its pause while it runs. */
  autoResume: z.boolean().default(false),
  metadata: z.record(z.string(), z.string()),
  /** Set by the creator; part of every process's environment. */
  environment: z.record(z.string(), z.string()),
  /** Secret of its envd and code surfaces; undefined = open. */
  accessToken: z.string().optional(),
  /**
   * Secret of its other ports, sent in `e2b-traffic-access-token`; undefined = open to clients that reach the server.
   */
  trafficAccessToken: z.string().optional(),
  /** The Host header for programs on its ports, with `${PORT}` for the port; undefined = the client's. */
  maskRequestHost: z.string().optional(),
  limits,
  /** True while its backend applies these limits. */
  isResizing: z.boolean().optional(),
  idempotency: idempotency.optional(),
  allowInternetAccess: z.boolean(),
  /** Rules for outgoing connections; undefined = no rules. */
  egress: egressRules.optional(),
  mounts: z.array(recordedMount).default([]),
});

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

export function specOf(record: SandboxRecord): SandboxSpec {
  const { id, template, build, snapshot, base, limits, allowInternetAccess, egress, mounts } = record;
  return {
    id,
    template,
    ...(build && { image: build.image }),
    snapshot: base ?? snapshot,
    limits,
    allowInternetAccess,
    egress: egress && egressRulesOf(record),
    mounts: mounts.map(({ volume, path, readOnly }) => ({ volume, path, readOnly })),
  };
}

/** Reason why a sandbox cannot pause as its record demands; undefined when it can. */
export function reasonAgainstPause(
  { backend, keepsMemory }: Pick<SandboxRecord, "backend" | "keepsMemory">,
  { pausing, stopping }: Sandbox,
): string | undefined {
  const [facet, how] = keepsMemory === false ? [stopping, " without memory"] : [pausing, ""];
  return facet === undefined ? `backend '${backend}' on this host does not support pausing${how}` : undefined;
}
