/** Why something failed, in Connect's vocabulary. */
export type ErrorCode =
  | "canceled"
  | "unknown"
  | "invalid_argument"
  | "deadline_exceeded"
  | "not_found"
  | "already_exists"
  | "permission_denied"
  | "resource_exhausted"
  | "failed_precondition"
  | "aborted"
  | "out_of_range"
  | "unimplemented"
  | "internal"
  | "unavailable"
  | "data_loss"
  | "unauthenticated";

/**
 * Has `instanceof` recognise instances that come from another installed copy of core: by a mark with a name that
 * all copies share. Subclasses keep the meaning that the language gives them.
 */
export function recogniseAcrossCopies(type: Function, name: string): void {
  const mark = Symbol.for(`coppice.${name}`);
  Object.defineProperty(type.prototype, mark, { value: true });
  Object.defineProperty(type, Symbol.hasInstance, {
    value(this: Function, value: unknown): boolean {
      if (this !== type) return Function.prototype[Symbol.hasInstance].call(this, value);
      return typeof value === "object" && value !== null && mark in value;
    },
  });
}

/** The resource that a file system has run out of. */
export type Shortage = "space" | "inodes";

/**
 * The one error type of the domain: a code that maps to an HTTP status and a Connect code,
 * and a message that is safe to show to a client.
 */
export class SandboxError extends Error {
  override readonly name = "SandboxError";
  readonly code: ErrorCode;
  /** For `resource_exhausted` and `unavailable`: when it is worth another try, in whole seconds. */
  readonly retryAfterSeconds: number | undefined;
  /** For `resource_exhausted` of a file operation that found no room. */
  readonly shortage: Shortage | undefined;

  constructor(
    code: ErrorCode,
    message: string,
    options?: {
      readonly cause?: unknown;
      readonly retryAfterSeconds?: number;
      readonly shortage?: Shortage | undefined;
    },
  ) {
    super(message, options);
    this.code = code;
    this.retryAfterSeconds = options?.retryAfterSeconds;
    this.shortage = options?.shortage;
  }
}

recogniseAcrossCopies(SandboxError, "sandbox-error");

/** One thing that is wrong with a configuration or an assembly of plugins. */
export interface BootProblem {
  readonly message: string;
  /** `file:line:column` of the configuration, where the problem has a place there. */
  readonly at?: string | undefined;
}

/** Why a server cannot start: every problem found, not only the first. */
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

recogniseAcrossCopies(BootError, "boot-error");

/** The message of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
