import { SandboxError } from "../../kernel/errors.js";

/** A verb was called with arguments that it cannot take: exit code 64, after how it is called. */
export class UsageError extends Error {
  /** @param usage of what was called; of the whole verb when absent. */
  constructor(
    message: string,
    readonly usage?: string,
  ) {
    super(message);
  }
}

/** True for an error about the arguments of a verb. */
export function isUsageError(error: unknown): error is Error {
  if (error instanceof UsageError) return true;
  if (error instanceof SandboxError) return error.code === "invalid_argument";
  // Thrown by parseArgs of node:util.
  return error instanceof TypeError && "code" in error && String(error.code).startsWith("ERR_PARSE_ARGS_");
}
