export type LogLevel = "debug" | "info" | "warn" | "error";

export interface LogEntry {
  readonly atMs: number;
  readonly level: LogLevel;
  readonly message: string;
  /** `base`, the number of a step from `1` on, or `finalize`. */
  readonly step: string | undefined;
}

/** Takes the lines of a build while it runs. */
export type BuildLog = (entry: Omit<LogEntry, "atMs">) => void;
