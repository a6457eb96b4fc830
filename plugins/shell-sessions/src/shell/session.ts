import type { CollectedOutput } from "./output-collector.js";
import { ShellError } from "./shell-error.js";

export interface ExecCommand {
  /** Text for bash, without NUL bytes. */
  readonly command: string;
  /** For this command alone; the session's directory when absent. */
  readonly cwd?: string | undefined;
  /** Exported to this command alone. */
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** From the begin of the command, not from the call. The session's own when absent. */
  readonly timeoutMs?: number | undefined;
}

export interface ExecResult extends CollectedOutput {
  readonly exitCode: number;
}

/** A shell that keeps its state between commands. Calls run one after the other, in the order in which they were made. */
export interface Session {
  readonly id: string;
  /** Absolute directory that the shell is in. */
  readonly cwd: string;
  /**
   * @throws ShellError SESSION_TERMINATED with `{ sessionId, exitCode }` when the shell ends instead of the command,
   * COMMAND_EXECUTION_ERROR for a time-out and for an invalid name of a variable, VALIDATION_FAILED for a NUL byte,
   * SESSION_DESTROYED when the session is deleted meanwhile.
   */
  exec(command: ExecCommand): Promise<ExecResult>;
  /** The shell's state as text for another bash: variables, functions, aliases, options, directory. @throws as `exec` */
  snapshot(): Promise<Buffer>;
}

export interface OpenSession {
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  /** Time-out of commands that name none. */
  readonly commandTimeoutMs?: number | undefined;
}

/** The sessions of one sandbox. They end with it. */
export interface SandboxSessions {
  /** @throws ShellError SESSION_ALREADY_EXISTS */
  create(id: string, options: OpenSession): Session;
  /** Makes the session when there is none. */
  get(id: string, options?: OpenSession): Session;
  ids(): readonly string[];
  /** Waits for the running command, and ends the shell. @returns false when there was none. */
  delete(id: string): Promise<boolean>;
}

const VARIABLE = /^[A-Za-z_][A-Za-z0-9_]*$/;

/** @throws ShellError COMMAND_EXECUTION_ERROR, VALIDATION_FAILED */
export function checkCommand({ command, cwd = "", env = {} }: ExecCommand): void {
  for (const name of Object.keys(env)) {
    if (VARIABLE.test(name)) continue;
    throw new ShellError("COMMAND_EXECUTION_ERROR", `Invalid environment variable name: ${name}`);
  }
  for (const text of [command, cwd, ...Object.values(env)]) {
    if (text.includes("\0")) {
      throw new ShellError(
        "VALIDATION_FAILED",
        "commands, directories and variables cannot contain a NUL byte",
      );
    }
  }
}
