import type { Inferred } from "@coppice/core";
import { z } from "zod";

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
