import { type LiveSandbox, createToken } from "@coppice/core";
import type { Exit, Output, Signal, TerminalSize } from "@coppice/core/backend";

/** What to start in a sandbox. */
export interface StartCommand {
  /** The program: an absolute path, or a name looked up in PATH. No shell is involved unless this names one. */
  readonly path: string;
  /** Arguments after the program's own name. */
  readonly args?: readonly string[] | undefined;
  /** On top of what every process of the sandbox finds set. */
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** A client's path: absent or `~` is the user's home, relative ones start there. */
  readonly cwd?: string | undefined;
  /** An account of the sandbox; its default one when absent or empty. */
  readonly user?: string | undefined;
  /** A name of the client's choosing to find the command by. */
  readonly tag?: string | undefined;
  /** Run it in a terminal of this size. */
  readonly terminal?: TerminalSize | undefined;
  /** `"pipe"` (default): `write` reaches its stdin. `"none"`: stdin is empty from the start. */
  readonly input?: "pipe" | "none" | undefined;
  /** How long it may live before SIGKILL, counted from the call; undefined = as long as it wants. */
  readonly timeoutMs?: number | undefined;
}

/** `killed`: ended by its sandbox's end, its timeout, or after a fatal signal sent through the table. */
export type CommandOutcome = "ok" | "error" | "killed";

/** How a command ended. */
export interface CommandEnd {
  /** undefined: its sandbox ended first, nobody knows what the process did. */
  readonly exit: Exit | undefined;
  readonly outcome: CommandOutcome;
  /** Milliseconds since the Unix epoch. */
  readonly endedAtMs: number;
}

/** A command that was started; it may have ended since. */
export interface StartedCommand {
  /** As seen inside the sandbox. The sandbox may use it again once the command has ended. */
  readonly pid: number;
  /** What was asked for, unchanged. */
  readonly request: StartCommand;
  /** Milliseconds since the Unix epoch. */
  readonly startedAtMs: number;
  /** Set once all its output was read and the process was reaped. */
  readonly end: CommandEnd | undefined;
  /** Resolves with `end`. Never rejects. */
  readonly ended: Promise<CommandEnd>;
  /** Aborted when `timeoutMs` is over, at the moment the process is sent SIGKILL. */
  readonly expired: AbortSignal;
  /**
   * A copy of the output from now on; a subscription made in the turn of the event loop in which `start`
   * resolved gets all of it. It ends after the last byte, when `end` is set, or when the signal aborts.
   *
   * Whoever subscribes must read on, or abort: once a subscriber's buffer is full the process waits for it.
   * Without subscribers output is read and discarded.
   */
  subscribe(signal: AbortSignal): AsyncIterable<Output>;
  /**
   * Sends bytes to its stdin, or its terminal; resolves when they were taken.
   * @throws SandboxError failed_precondition when there is no open stdin.
   */
  write(data: Uint8Array): Promise<void>;
  /** Ends stdin; does nothing where there is none open. @throws SandboxError failed_precondition for a terminal. */
  closeInput(): Promise<void>;
  /**
   * Sends a signal. After SIGTERM and SIGKILL the command ends as soon as its process is gone, also while
   * children still hold its output open.
   * @param scope the process alone (default) or its whole process group.
   * @throws SandboxError not_found when the command has already ended.
   */
  kill(signal: Signal, scope?: "process" | "group"): Promise<void>;
  /** @throws SandboxError failed_precondition without a terminal, invalid_argument for an impossible size. */
  resize(size: TerminalSize): Promise<void>;
}

/** Which command of a sandbox: one tag may name several, then the newest is meant. */
export type CommandSelector =
  | { readonly pid: number; readonly tag?: undefined }
  | { readonly tag: string; readonly pid?: undefined };

/** Commands that run, or those and the ones that ended within the retention time. */
export type CommandSet = "running" | "retained";

/**
 * The commands of all sandboxes: one table, whichever protocol started them. Everything about a sandbox
 * is dropped when it ends, and its running commands end as `killed`.
 */
export interface Commands {
  /**
   * @throws SandboxError unauthenticated `invalid username: '<user>'`, invalid_argument (working directory,
   * arguments too long or with NUL bytes), resource_exhausted (too many commands in this sandbox),
   * unavailable (the sandbox does not serve). A program that does not exist is no error: it exits with 127.
   */
  start(sandbox: LiveSandbox, request: StartCommand): Promise<StartedCommand>;
  /** Oldest first. */
  list(sandbox: LiveSandbox): readonly StartedCommand[];
  /**
   * @param among `"running"` when absent.
   * @throws SandboxError not_found `process with pid <n> not found` or `process with tag <t> not found`.
   */
  find(sandbox: LiveSandbox, selector: CommandSelector, among?: CommandSet): StartedCommand;
}

export const Commands = createToken<Commands>("commands");
