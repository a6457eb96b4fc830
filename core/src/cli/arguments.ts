import { SandboxError } from "../kernel/errors.js";

/** sysexits.h: EX_CONFIG, for a configuration that cannot be used. */
export const EXIT_CONFIG = 78;

/** Invalid arguments of a verb. The command line exits with 64. */
export class UsageError extends Error {}

export function isUsageError(error: unknown): error is Error {
  return error instanceof UsageError || (error instanceof SandboxError && error.code === "invalid_argument");
}
