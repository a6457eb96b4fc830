import type { BuildResult } from "./build-context.js";

/** `waiting` until its client starts it, and `building` until it is `ready` or an `error`. */
export type BuildState = "waiting" | "building" | "ready" | "error";

/** Why a build failed, as its client is told. */
export interface BuildReason {
  readonly message: string;
  /** As `LogEntry.step`. */
  readonly step: string | undefined;
}

/** Of a sandbox of a template. */
export const LEAST_MEMORY_MIB = 128;

/** Limits of a build, and of the sandboxes of what it makes. */
export interface BuildLimits {
  readonly cpuCount: number;
  readonly memoryMiB: number;
  /** Undefined = the default of its backend. */
  readonly diskMiB: number | undefined;
}

/** A build of a template. Times are milliseconds since the Unix epoch. */
export interface BuildRecord {
  /** A UUID. */
  readonly id: string;
  readonly templateId: string;
  readonly backend: string;
  readonly state: BuildState;
  readonly limits: BuildLimits;
  /** What a ready one has made; undefined also for one of a server that is gone, whose files may have to be fetched. */
  readonly result: BuildResult | undefined;
  /** Of its image in the registry of the fleet, once it is there. */
  readonly digest: string | undefined;
  /** Why one failed. */
  readonly reason: BuildReason | undefined;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
  readonly finishedAtMs: number | undefined;
}
