import { SandboxError } from "../kernel/errors.js";

/** Invalid arguments of a verb. The command line exits with 64. */
export class UsageError extends Error {
  /** @param usage of the action. */
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

/** True when the arguments ask for help. Those behind `--` belong to another program. */
export function asksForHelp(args: readonly string[]): boolean {
  const end = args.indexOf("--");
  return args.slice(0, end === -1 ? args.length : end).some((word) => word === "--help" || word === "-h");
}
