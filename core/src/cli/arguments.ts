import { SandboxError } from "../kernel/errors.js";
import { parseArgs } from "node:util";

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

/** True when the arguments ask for help. Those behind `--` belong to another program. */
export function asksForHelp(args: readonly string[]): boolean {
  const end = args.indexOf("--");
  return args.slice(0, end === -1 ? args.length : end).some((word) => word === "--help" || word === "-h");
}

/** The configuration file that a verb was given. @throws UsageError, or the error of parseArgs for an option. */
export function configArgument(args: readonly string[]): string {
  const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
  const [file, ...rest] = positionals;
  if (file === undefined || rest.length > 0) throw new UsageError("name one configuration file");
  return file;
}
