import type { Inferred } from "@coppice/core";
import { z } from "zod";
import type { BuildResult } from "./layer.js";

export type LogLevel = LogEntry["level"];

/** From the least on. */
export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;

export type LogEntry = Inferred<typeof logEntry>;

export const logEntry = z.object({
  atMs: z.number(),
  level: z.enum(LOG_LEVELS),
  message: z.string(),
  /** `base`, the number of a step from `1` on, or `finalize`. */
  step: z.string().optional(),
});

/** Takes the lines of a build while it runs. */
export type BuildLog = (entry: Omit<LogEntry, "atMs">) => void;

/** A build failed for a reason that its client is told. */
export class BuildFailure extends Error {
  override readonly name = "BuildFailure";
  /** As `LogEntry.step`: clients show the line of their code that made the step. */
  readonly step: string | undefined;

  constructor(message: string, step: string | undefined, options?: ErrorOptions) {
    super(message, options);
    this.step = step;
  }
}

/** Of a sandbox of a template. */
export const LEAST_MEMORY_MIB = 128;

/** Why a build failed, as its client is told. */
export type BuildReason = Inferred<typeof buildReason>;

const buildReason = z.object({
  message: z.string(),
  /** As `LogEntry.step`. */
  step: z.string().optional(),
});

/** Limits of a build, and of the sandboxes of what it makes. */
export type BuildLimits = Inferred<typeof buildLimits>;

const buildLimits = z.object({
  cpuCount: z.number(),
  memoryMiB: z.number(),
  /** Undefined = the default of its backend. */
  diskMiB: z.number().optional(),
});

/** A build of a template. Times are milliseconds since the Unix epoch. */
export type BuildRecord = Inferred<typeof buildRecord>;

export const buildRecord = z.object({
  /** A UUID. */
  id: z.string(),
  templateId: z.string(),
  backend: z.string(),
  /** `waiting` until its client starts it, and `building` until it is `ready` or an `error`. */
  state: z.enum(["waiting", "building", "ready", "error"]),
  limits: buildLimits,
  /** What a ready one has made; undefined also for one of a server that is gone, whose files may have to be fetched. */
  result: z.custom<BuildResult>().optional(),
  /** Of its image in the registry of the fleet, once it is there. */
  digest: z.string().optional(),
  /** Why one failed. */
  reason: buildReason.optional(),
  createdAtMs: z.number(),
  updatedAtMs: z.number(),
  finishedAtMs: z.number().optional(),
});
