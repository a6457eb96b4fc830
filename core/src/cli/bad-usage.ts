import { SandboxError } from "../kernel/errors.js";

/** Whether a verb was called with arguments that it cannot take. */
export function isBadUsage(error: unknown): error is Error {
  if (error instanceof SandboxError) return error.code === "invalid_argument";
  // What node:util's parseArgs throws.
  return error instanceof TypeError && "code" in error && String(error.code).startsWith("ERR_PARSE_ARGS_");
}
