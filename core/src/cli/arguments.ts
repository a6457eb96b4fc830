import { SandboxError } from "../kernel/errors.js";

/** Invalid arguments of a verb. The command line exits with 64. */
export class UsageError extends Error {}

export function isUsageError(error: unknown): error is Error {
  return error instanceof UsageError || (error instanceof SandboxError && error.code === "invalid_argument");
}
