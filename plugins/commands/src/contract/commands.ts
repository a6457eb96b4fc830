import { type LiveSandbox, createToken } from "@coppice/core";
import type { Exit, Output, SandboxId, Signal, TerminalSize } from "@coppice/core/backend";

/** A command that is to be started in a sandbox. */
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

/** A piece of a command's output, and its place in it. */
export interface OutputPiece extends Output {
  /** Bytes that the command wrote before this piece, on all streams together: what cursors count. */
  readonly offset: number;
}

/** A command that was started; it may have ended since. */
export interface StartedCommand {
  /** A version 7 UUID: names this command and no other, for as long as anything of it is kept. */
  readonly id: string;
  /** As seen inside the sandbox. The sandbox may use it again once the command has ended. */
  readonly pid: number;
  /**
   * What was asked for. Of a command with more arguments and variables than are listed it has the first arguments and
   * no variables; once the command has ended, no variables at all: what is remembered must not cost much memory.
   */
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
   * A subscriber must read on, or abort: once its buffer is full the process waits for it.
   * Without subscribers output is read and discarded.
   * @param from begin with this byte instead of the next one: what the log has kept from there on, then what
   * comes, each byte once. What it has not kept is left out; offsets tell. An offset that the command has not
   * reached means the next byte.
   */
  subscribe(signal: AbortSignal, from?: number): AsyncIterable<OutputPiece>;
  /** Offset of the first byte that a subscription from this one would get. */
  keptFrom(offset: number): Promise<number>;
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

/** Which command of a sandbox's log: of several with one pid or tag the newest is meant. */
export type LogSelector =
  | { readonly id: string; readonly pid?: undefined; readonly tag?: undefined }
  | { readonly id?: undefined; readonly pid: number; readonly tag?: undefined }
  | { readonly id?: undefined; readonly pid?: undefined; readonly tag: string };

/** `lost`: its sandbox, or the server, ended before it did, so nobody knows what became of it. */
export type CommandPhase = "running" | "exited" | "killed" | "lost";

/** Record of a command in the log, besides its output. */
export interface LoggedCommand {
  readonly id: string;
  readonly sandboxId: SandboxId;
  readonly pid: number;
  /** Its beginning, where it is very long. */
  readonly path: string;
  readonly tag: string | undefined;
  /** Milliseconds since the Unix epoch. */
  readonly startedAtMs: number;
  readonly phase: CommandPhase;
  /** undefined while it runs, and when its server ended before it. */
  readonly end: CommandEnd | undefined;
  /** All that it has written so far, kept or not. */
  readonly outputBytes: number;
}

/** A piece of output as the log has it. */
export interface LoggedPiece extends OutputPiece {
  /** When it was read from the command: milliseconds since the Unix epoch. */
  readonly atMs: number;
}

export interface LogPageRequest {
  /** Offset of the first byte wanted. */
  readonly cursor: number;
  /** Most bytes of output in the page; at least 1. */
  readonly limitBytes: number;
}

/** A part of a command's output. */
export interface LogPage {
  readonly command: LoggedCommand;
  /** In the order of their offsets; empty when there is nothing at or after the cursor yet. */
  readonly pieces: readonly LoggedPiece[];
  /** Where the next page begins. */
  readonly nextCursor: number;
  /** Set when output at the cursor was not kept: the first byte that was. */
  readonly truncatedBefore: number | undefined;
}

/**
 * The output that is kept of one sandbox's commands, also after they, the sandbox and the server that
 * ran them have ended. What the log was told is in what it answers, at once.
 */
export interface SandboxLogs {
  /** @throws SandboxError not_found. */
  find(selector: LogSelector): Promise<LoggedCommand>;
  /** All commands that something is kept of, newest first. */
  list(): AsyncIterable<LoggedCommand>;
  /** @throws SandboxError not_found. */
  page(id: string, request: LogPageRequest): Promise<LogPage>;
  /** What all commands wrote since then, in the order in which it was read, each piece with its command's id. */
  outputSince(sinceMs: number): AsyncIterable<LoggedPiece & { readonly id: string }>;
}

/**
 * The commands of all sandboxes: one table, whichever protocol started them. Everything about a sandbox
 * is dropped when it ends, except for its log, and its running commands end as `killed`.
 */
export interface Commands {
  /**
   * @throws SandboxError unauthenticated `invalid username: '<user>'`, invalid_argument (working directory,
   * tag, arguments too long or with NUL bytes), resource_exhausted (too many commands in this sandbox),
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
  /** The log of a sandbox, which may have ended long ago; an empty one where there is none. */
  log(sandboxId: SandboxId): SandboxLogs;
}

export const Commands = createToken<Commands>("commands");
