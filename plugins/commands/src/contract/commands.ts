import { type LiveSandbox, createToken } from "@coppice/core";
import type { Exit, Output, Process, SandboxId, Signal, TerminalSize } from "@coppice/core/backend";

export interface StartCommand {
  /** The program: an absolute path, or a name looked up in PATH. No shell is involved unless this names one. */
  readonly path: string;
  readonly args?: readonly string[] | undefined;
  /** In addition to the variables of every process of the sandbox. */
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** A client's path: absent or `~` is the user's home, relative ones start there. */
  readonly cwd?: string | undefined;
  /** An account of the sandbox; the default one when absent or empty. */
  readonly user?: string | undefined;
  /** A name chosen by the client, to find the command by. */
  readonly tag?: string | undefined;
  /** Size of its terminal; without one it has pipes. */
  readonly terminal?: TerminalSize | undefined;
  /** `"pipe"` (default): `write` reaches its stdin. `"none"`: stdin is empty from the start. */
  readonly input?: "pipe" | "none" | undefined;
  /** Time until SIGKILL, counted from the call; undefined = unlimited. */
  readonly timeoutMs?: number | undefined;
  /** Time for its last output after its exit: children may hold that open. undefined = until they let go. */
  readonly lastOutputMs?: number | undefined;
}

/** `killed`: ended by the end of the sandbox, the timeout, or a fatal signal that was sent through this plugin. */
export type CommandOutcome = "ok" | "error" | "killed";

export interface CommandEnd {
  /** undefined when its sandbox ended first, so that the exit is unknown. */
  readonly exit: Exit | undefined;
  readonly outcome: CommandOutcome;
  /** Milliseconds since the Unix epoch. */
  readonly endedAtMs: number;
}

/** A piece of a command's output with its offset. */
export interface OutputPiece extends Output {
  /** Bytes that the command wrote before this piece, on all streams together; cursors count these. */
  readonly offset: number;
}

/** A command that was started; it may have ended since. */
export interface StartedCommand {
  /** A version 7 UUID, unique for as long as any record of the command is kept. */
  readonly id: string;
  /** As seen inside the sandbox, which may reuse it once the command has ended. */
  readonly pid: number;
  /**
   * The request. To bound memory, a command with more arguments and variables than are listed has the first arguments
   * and no variables; an ended one has no variables.
   */
  readonly request: StartCommand;
  /** Milliseconds since the Unix epoch. */
  readonly startedAtMs: number;
  /** Set once all output was read and the process was reaped. */
  readonly end: CommandEnd | undefined;
  readonly ended: Promise<CommandEnd>;
  /** Aborted when `timeoutMs` is over, at the moment of SIGKILL. */
  readonly expired: AbortSignal;
  /**
   * A copy of the output from now on; a subscription made in the turn of the event loop in which `start` resolved gets
   * all of it. It ends after the last byte, when `end` is set, or when the signal aborts.
   *
   * A subscriber must read on, or abort: once its buffer is full the process waits for it. Without subscribers output
   * is read and discarded.
   * @param from offset of the first byte instead of the next one: logged output from there on, then new output, each
   * byte once. Output that the log lost is left out, as offsets show. A future offset means the next byte.
   */
  subscribe(signal: AbortSignal, from?: number): OutputSubscription;
  /** Offset of the first byte that a subscription from this one would get. */
  keptFrom(offset: number): Promise<number>;
  /** Resolves when the bytes were accepted. @throws SandboxError failed_precondition when there is no open stdin. */
  write(data: Uint8Array): Promise<void>;
  /** Ends stdin, if it is open. @throws SandboxError failed_precondition for a terminal. */
  closeInput(): Promise<void>;
  /**
   * Sends a signal. After SIGTERM and SIGKILL the command ends as soon as its process is gone, even while children hold
   * its output open.
   * @param scope the process alone (default) or its whole process group.
   * @throws SandboxError not_found when the command has already ended.
   */
  kill(signal: Signal, scope?: "process" | "group"): Promise<void>;
  /** @throws SandboxError failed_precondition without a terminal, invalid_argument for an impossible size. */
  resize(size: TerminalSize): Promise<void>;
}

/** Output of a command for one reader, who iterates it once. */
export interface OutputSubscription extends AsyncIterable<OutputPiece> {
  /** Takes further pieces that are there already, of so many bytes at most. Not while the next piece is awaited. */
  taken(mostBytes: number): readonly OutputPiece[];
}

/** Selects a command of a sandbox; of several with one tag the newest. */
export type CommandSelector =
  | { readonly pid: number; readonly tag?: undefined }
  | { readonly tag: string; readonly pid?: undefined };

/** Running commands (the default), or also those that ended within the retention time. */
export type CommandSet = "running" | "retained";

/** Selects a command in a sandbox's log; of several with one pid or tag the newest. */
export type LogSelector =
  | { readonly id: string; readonly pid?: undefined; readonly tag?: undefined }
  | { readonly id?: undefined; readonly pid: number; readonly tag?: undefined }
  | { readonly id?: undefined; readonly pid?: undefined; readonly tag: string };

/** `lost`: its sandbox, or the server, ended first, so its exit is unknown. */
export type CommandPhase = "running" | "exited" | "killed" | "lost";

/** Record of a command in the log, besides its output. */
export interface LoggedCommand {
  readonly id: string;
  readonly sandboxId: SandboxId;
  readonly pid: number;
  /** Cut at the end when it is very long. */
  readonly path: string;
  readonly tag: string | undefined;
  /** Milliseconds since the Unix epoch. */
  readonly startedAtMs: number;
  readonly phase: CommandPhase;
  /** undefined while it runs, and when its server ended before it. */
  readonly end: CommandEnd | undefined;
  /** All output so far, kept or not. */
  readonly outputBytes: number;
}

/** A piece of logged output. */
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

/** Output of a command from a cursor on, from its log or from memory. */
export interface OutputPage {
  readonly command: Pick<LoggedCommand, "phase" | "end" | "outputBytes">;
  /** By offset; empty when there is nothing at or after the cursor yet. */
  readonly pieces: readonly OutputPiece[];
  readonly nextCursor: number;
  /** Set when output at the cursor was not kept: offset of the first kept byte. */
  readonly truncatedBefore: number | undefined;
  /** Frees the memory of the pieces at once; they are empty afterwards. */
  release(): void;
}

export interface LogPage extends OutputPage {
  readonly command: LoggedCommand;
  readonly pieces: readonly LoggedPiece[];
}

/** One sandbox's log, also after its commands, it and the server have ended. Recorded output can be read at once. */
export interface SandboxLogs {
  /** @throws SandboxError not_found. */
  find(selector: LogSelector): Promise<LoggedCommand>;
  /** All logged commands, newest first. */
  list(): AsyncIterable<LoggedCommand>;
  /** @throws SandboxError not_found. */
  page(id: string, request: LogPageRequest): Promise<LogPage>;
  /** Output of all commands since then, in the order in which it was read, each piece with its command's id. */
  outputSince(sinceMs: number): AsyncIterable<LoggedPiece & { readonly id: string }>;
}

/**
 * The commands of all sandboxes: one table for all protocols. When a sandbox ends, its running commands end as
 * `killed`, and everything about it but its log is dropped.
 */
export interface Commands {
  /**
   * @throws SandboxError unauthenticated `invalid username: '<user>'`, invalid_argument (working directory, tag,
   * arguments too long or with NUL bytes), resource_exhausted (too many commands in this sandbox), unavailable (the
   * sandbox does not serve). A missing program is no error: it exits with 127.
   */
  start(sandbox: LiveSandbox, request: StartCommand): Promise<StartedCommand>;
  /**
   * Enters a process that the caller has started by other means, such as a command of a shell that it keeps: it is listed,
   * logged and killed as every other one.
   * @throws SandboxError resource_exhausted (too many commands in this sandbox).
   */
  track(sandbox: LiveSandbox, request: StartCommand, process: Process): StartedCommand;
  /** Oldest first. */
  list(sandbox: LiveSandbox): readonly StartedCommand[];
  /** @throws SandboxError not_found `process with pid <n> not found` or `process with tag <t> not found`. */
  find(sandbox: LiveSandbox, selector: CommandSelector, among?: CommandSet): StartedCommand;
  /** The log of a sandbox, also of one that ended long ago; empty where there is none. */
  log(sandboxId: SandboxId): SandboxLogs;
}

export const Commands = createToken<Commands>("commands");
