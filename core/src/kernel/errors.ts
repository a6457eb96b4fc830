import { type DeclaredReason, type ErrorCode, type Reason, REASONS } from "./reasons.js";

/** The exhausted resource of a file system. */
export type Shortage = "space" | "inodes";

/**
 * The one error type of the domain: a reason of core or of a plugin, the code that it has there, which maps to an HTTP
 * status and a Connect code, and a message that is safe to show to a client.
 */
export class SandboxError extends Error {
  override readonly name = "SandboxError";
  readonly reason: string;
  readonly code: ErrorCode;
  /** HTTP status, where it is not that of the code. */
  readonly status: number | undefined;
  /** Seconds until another try makes sense, for `resource_exhausted` and `unavailable`. */
  readonly retryAfterSeconds: number | undefined;
  /** Exhausted resource, for `resource_exhausted` of a file operation. */
  readonly shortage: Shortage | undefined;

  /** @param reason of core, of a plugin, or that of another error. */
  constructor(
    reason: Reason | DeclaredReason,
    message: string,
    options?: {
      readonly cause?: unknown;
      readonly retryAfterSeconds?: number;
      readonly shortage?: Shortage | undefined;
    },
  ) {
    super(message, options);
    const declared = typeof reason === "string" ? REASONS[reason] : reason;
    this.reason = declared.reason;
    this.code = declared.code;
    this.status = declared.status;
    this.retryAfterSeconds = options?.retryAfterSeconds;
    this.shortage = options?.shortage;
  }
}

/** A problem of a configuration or of a combination of plugins. */
export interface BootProblem {
  readonly message: string;
  /** `file:line:column` of the configuration, for a problem with a position. */
  readonly at?: string | undefined;
}

/** Reasons why a server cannot start: every problem found, not only the first. */
export class BootError extends Error {
  override readonly name = "BootError";
  readonly problems: readonly BootProblem[];

  constructor(problems: readonly BootProblem[], options?: { readonly cause?: unknown }) {
    super(
      problems
        .map((problem) => (problem.at ? `${problem.at}: ${problem.message}` : problem.message))
        .join("\n"),
      options,
    );
    this.problems = problems;
  }
}

/** The message of what was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Rethrows errors but those with one of these codes, of the system or of the domain: `.catch(ignoring("ENOENT"))`. */
export function ignoring(...codes: readonly string[]): (error: unknown) => undefined {
  return (error) => {
    if (!codes.includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  };
}
