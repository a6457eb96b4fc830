/** Code of a refusal, as clients of this interface know it, and its status. */
export const STATUS_OF_CODE = {
  INVALID_COMMAND: 400,
  VALIDATION_FAILED: 400,
  IS_DIRECTORY: 400,
  NOT_DIRECTORY: 400,
  INVALID_PORT: 400,
  INVALID_GIT_URL: 400,
  NAME_TOO_LONG: 400,
  GIT_AUTH_FAILED: 401,
  PERMISSION_DENIED: 403,
  READ_ONLY: 403,
  FILE_NOT_FOUND: 404,
  PROCESS_NOT_FOUND: 404,
  COMMAND_NOT_FOUND: 404,
  CONTEXT_NOT_FOUND: 404,
  GIT_REPOSITORY_NOT_FOUND: 404,
  GIT_BRANCH_NOT_FOUND: 404,
  SESSION_ALREADY_EXISTS: 409,
  FILE_EXISTS: 409,
  RESOURCE_BUSY: 409,
  SESSION_TERMINATED: 410,
  SESSION_DESTROYED: 410,
  FILE_TOO_LARGE: 413,
  COMMAND_EXECUTION_ERROR: 500,
  STREAM_START_ERROR: 500,
  PROCESS_ERROR: 500,
  FILESYSTEM_ERROR: 500,
  CODE_EXECUTION_ERROR: 500,
  GIT_CLONE_FAILED: 500,
  GIT_OPERATION_FAILED: 500,
  INTERNAL_ERROR: 500,
  UNKNOWN_ERROR: 500,
  PYTHON_NOT_AVAILABLE: 501,
  JAVASCRIPT_NOT_AVAILABLE: 501,
  GIT_NETWORK_ERROR: 502,
  INTERPRETER_NOT_READY: 503,
} as const;

export type ShellErrorCode = keyof typeof STATUS_OF_CODE;

/** A refusal with a code of this interface. */
export class ShellError extends Error {
  override readonly name = "ShellError";
  readonly code: ShellErrorCode;
  /** Details that clients read, such as `{ sessionId, exitCode }`. */
  readonly context: Readonly<Record<string, unknown>>;

  constructor(code: ShellErrorCode, message: string, context: Readonly<Record<string, unknown>> = {}) {
    super(message);
    this.code = code;
    this.context = context;
  }
}
