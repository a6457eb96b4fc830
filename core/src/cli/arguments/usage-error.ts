import { SandboxError } from "../../kernel/errors.js";

/** Invalid arguments of a verb. The command line prints the usage and exits with 64. */
export class UsageError extends Error {
  /** @param usage of the action; of the whole verb when absent. */
  constructor(
    message: string,
    readonly usage?: string,
  ) {
    super(message);
  }
}

export function isUsageError(error: unknown): error is Error {
  if (error instanceof UsageError) return true;
  if (error instanceof SandboxError) return error.code === "invalid_argument";
  // Thrown by parseArgs of node:util.
  return error instanceof TypeError && "code" in error && String(error.code).startsWith("ERR_PARSE_ARGS_");
}
