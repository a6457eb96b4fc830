import { posix } from "node:path";
import {
  type Clock,
  type LiveSandbox,
  processEnvironment,
  SandboxError,
  Semaphore,
  type Spool,
} from "@coppice/core";
import { type Exit, exitCodeOf, type Output, type Process, type Signal } from "@coppice/core/backend";
import type { Commands } from "@coppice/plugin-commands";
import type { ShellSessionsConfig } from "../shell-sessions-config.js";
import { enterCommand } from "./driver.js";
import { OutputCollector } from "./output-collector.js";
import {
  checkCommand,
  type ExecCommand,
  type ExecResult,
  type OpenSession,
  type Session,
} from "./session.js";
import { ShellError } from "./shell-error.js";
import { type RunEnd, Shell } from "./shell.js";

interface ShellSessionOptions {
  readonly id: string;
  readonly sandbox: LiveSandbox;
  readonly commands: Commands;
  readonly clock: Clock;
  readonly config: ShellSessionsConfig;
  readonly spool: Spool;
  readonly open: OpenSession;
}

/** Length of the beginning of a command that lists of commands show. */
const SHOWN_LENGTH = 1024;

/** A session whose shell is started with its first command, and again after one that ended it. */
export class ShellSession implements Session {
  readonly id: string;
  readonly #options: ShellSessionOptions;
  readonly #turns = new Semaphore();
  /** Calls that have not ended, with the running one. */
  #calls = 0;
  #shell: Shell | undefined;
  #cwd: string;
  /** State for the next shell, from one that was stopped. */
  #state: Buffer | undefined;
  /** Exit of a shell whose end the next call has to be told. */
  #terminated: Exit | undefined;
  #isDeleted = false;

  constructor(options: ShellSessionOptions) {
    this.id = options.id;
    this.#options = options;
    this.#cwd = options.open.cwd ?? options.config.workdir;
  }

  get cwd(): string {
    return this.#cwd;
  }

  /** False when its shell has ended, and the next call would be told so: a client may make the session anew. */
  get isAlive(): boolean {
    return this.#terminated === undefined && this.#shell?.hasEnded !== true;
  }

  async exec(command: ExecCommand): Promise<ExecResult> {
    checkCommand(command);
    return await this.#inTurn((shell) => this.#exec(shell, command));
  }

  snapshot(): Promise<Buffer> {
    return this.#inTurn(async (shell) => {
      const state = await shell.state();
      if (state !== undefined) return state;
      this.#shell = undefined;
      throw this.#terminatedError(await shell.ended);
    });
  }

  /** Waits for the running command, and ends the shell. Later calls are refused. */
  async delete(): Promise<void> {
    this.#isDeleted = true;
    await this.#turns.run(() => this.#shell?.close());
  }

  /** Ends the shell at once. */
  close(): void {
    this.#isDeleted = true;
    this.#shell?.close();
  }

  async #inTurn<T>(use: (shell: Shell) => Promise<T>): Promise<T> {
    // The queue itself has no bound: a deletion always has its turn.
    if (this.#calls > this.#options.config.maxWaiting) {
      throw new ShellError("RESOURCE_BUSY", `Too many calls wait for session '${this.id}'`, {
        sessionId: this.id,
      });
    }
    this.#calls++;
    const release = await this.#turns.acquire();
    try {
      if (this.#isDeleted) {
        throw new ShellError("SESSION_DESTROYED", `Session '${this.id}' was deleted`, { sessionId: this.id });
      }
      const shell = await this.#ready();
      return await use(shell);
    } finally {
      this.#calls--;
      release();
    }
  }

  /** The shell, idle. @throws ShellError SESSION_TERMINATED once for one that ended unseen. */
  async #ready(): Promise<Shell> {
    const exit = this.#shell?.hasEnded === true ? await this.#shell.ended : this.#terminated;
    this.#terminated = undefined;
    if (exit !== undefined) {
      this.#shell = undefined;
      throw this.#terminatedError(exit);
    }
    this.#shell ??= await this.#start();
    return this.#shell;
  }

  async #start(): Promise<Shell> {
    const { sandbox, clock, config, open } = this.#options;
    const { runtime } = sandbox;
    const user = await runtime.user(undefined);
    const locale = { LANG: "C.UTF-8", LC_ALL: "C.UTF-8" };
    const shell = await Shell.start({
      runtime,
      env: processEnvironment(sandbox, user, { ...locale, ...open.env }),
      user: user.name,
      clock,
      shellTimeoutMs: config.shellTimeout,
      killGraceMs: config.killGrace,
    });
    const state = this.#state;
    this.#state = undefined;
    const command = state === undefined ? enterCommand(this.#cwd, config.workdir) : { command: state };
    const end = await shell.run({ ...command, onOutput: () => Promise.resolve() });
    if (end.status === undefined) throw this.#terminatedError(end.exit);
    this.#cwd = end.cwd;
    return shell;
  }

  async #exec(shell: Shell, command: ExecCommand): Promise<ExecResult> {
    const { config, sandbox, spool } = this.#options;
    const { owner } = sandbox.record;
    const collector = new OutputCollector({ maxBytes: config.maxOutput, spool, owner });
    try {
      const exitCode = await this.#run(shell, command, collector);
      return { exitCode, ...(await collector.result()) };
    } catch (error) {
      await collector[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** @returns the exit code. */
  async #run(
    shell: Shell,
    { command, cwd, env, timeoutMs }: ExecCommand,
    collector: OutputCollector,
  ): Promise<number> {
    const { sandbox, commands, config, open } = this.#options;
    const tracked = new TrackedProcess(shell);
    const args = ["-c", command.slice(0, SHOWN_LENGTH)];
    commands.track(sandbox, { path: "bash", args, cwd: this.#cwd, input: "none" }, tracked);
    const limitMs = timeoutMs ?? open.commandTimeoutMs ?? config.commandTimeout;
    const end = await shell.run({
      command,
      cwd: cwd === undefined ? undefined : posix.resolve(this.#cwd, cwd),
      env,
      timeoutMs: limitMs,
      async onOutput(output) {
        const room = collector.add(output);
        await tracked.push(output);
        await room;
      },
    });
    const exit = endedBy(end, tracked.killedBy);
    tracked.end(exit);
    if (end.status === undefined) this.#noteEnd(end);
    else this.#cwd = end.cwd;
    if (end.isOverdue) throw this.#overdueError(command, limitMs);
    if (end.status === undefined && end.state === undefined) throw this.#terminatedError(exit);
    return exitCodeOf(exit);
  }

  /** Forgets a shell that has ended. Its state is for the next one; without it the next call is told after a time-out. */
  #noteEnd({ exit, state, isOverdue }: Exclude<RunEnd, { readonly status: number }>): void {
    this.#shell = undefined;
    this.#state = state;
    if (state === undefined && isOverdue) this.#terminated = exit;
  }

  #terminatedError(exit: Exit): ShellError {
    const { sandbox } = this.#options;
    const context = { sessionId: this.id, exitCode: exitCodeOf(exit) };
    if (sandbox.ended.aborted) return new ShellError("SESSION_DESTROYED", "The sandbox has ended", context);
    const text = `The shell of session '${this.id}' has ended with exit code ${context.exitCode}; the next command starts another one`;
    return new ShellError("SESSION_TERMINATED", text, context);
  }

  #overdueError(command: string, limitMs: number | undefined): ShellError {
    const shown = command.slice(0, SHOWN_LENGTH);
    const text = `Failed to execute command '${shown}' in session '${this.id}': Command timeout after ${limitMs}ms`;
    return new ShellError("COMMAND_EXECUTION_ERROR", text, { command: shown, sessionId: this.id });
  }
}

/** Exit of a command: by itself, by a signal that was sent to it, or with its shell. */
function endedBy(end: RunEnd, killedBy: Signal | undefined): Exit {
  if (end.status !== undefined) return { code: end.status };
  if (end.state === undefined) return end.exit;
  return { signal: killedBy ?? "SIGTERM" };
}

/** Bytes that wait for a reader before `push` waits. */
const BUFFER_BYTES = 256 * 1024;

type TrackingShell = Pick<Shell, "pid" | "interrupt">;

/** A command that a shell runs, as a process of the command table. */
class TrackedProcess implements Process {
  readonly pid: number;
  readonly output: AsyncIterable<Output>;
  readonly exit: Promise<Exit>;
  readonly #exit = Promise.withResolvers<Exit>();
  /** Until the end: the table of commands keeps ended ones. */
  #shell: TrackingShell | undefined;
  readonly #queue: Output[] = [];
  #queuedBytes = 0;
  /** Nobody reads any more: the rest is dropped. */
  #isLeft = false;
  #changed = Promise.withResolvers<void>();
  /** The last signal that was sent to the command. */
  killedBy: Signal | undefined;

  constructor(shell: TrackingShell) {
    this.pid = shell.pid;
    this.#shell = shell;
    this.exit = this.#exit.promise;
    this.output = this.#read();
  }

  /** Resolves when there is room for more. */
  async push(output: Output): Promise<void> {
    if (this.#isLeft || this.#shell === undefined) return;
    this.#queue.push(output);
    this.#queuedBytes += output.data.length;
    this.#change();
    while (this.#queuedBytes >= BUFFER_BYTES && !this.#isLeft) await this.#changed.promise;
  }

  end(exit: Exit): void {
    this.#shell = undefined;
    this.#exit.resolve(exit);
    this.#change();
  }

  async write(): Promise<void> {
    throw new SandboxError("stdin_closed", "the commands of a session have no input");
  }

  async closeInput(): Promise<void> {
    // It is empty from the start.
  }

  async kill(signal: Signal): Promise<void> {
    if (this.#shell === undefined) {
      throw new SandboxError("process_not_found", "the command has already ended");
    }
    this.killedBy = signal;
    await this.#shell.interrupt(signal);
  }

  async resize(): Promise<void> {
    throw new SandboxError("terminal_missing", "tty not assigned to process");
  }

  async *#read(): AsyncGenerator<Output> {
    try {
      for (;;) {
        const next = this.#queue.shift();
        if (next !== undefined) {
          this.#queuedBytes -= next.data.length;
          this.#change();
          yield next;
        } else if (this.#shell === undefined) return;
        else await this.#changed.promise;
      }
    } finally {
      this.#isLeft = true;
      this.#change();
    }
  }

  #change(): void {
    const { resolve } = this.#changed;
    this.#changed = Promise.withResolvers();
    resolve();
  }
}
