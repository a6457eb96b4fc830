import { posix } from "node:path";
import { type Clock, fulfilledWithin, SandboxError } from "@coppice/core";
import type { Exit, Output, Process, Sandbox, Signal } from "@coppice/core/backend";
import { commandInput, driverScript, MARKS, newNonce, stateInput } from "./driver.js";
import { type Mark, MarkedOutput } from "./marked-output.js";
import { signalTree } from "./signal-tree.js";

export interface ShellOptions {
  readonly runtime: Sandbox;
  /** The complete environment. */
  readonly env: Readonly<Record<string, string>>;
  readonly user: string;
  readonly clock: Clock;
  /** Time that the idle shell has to take a command. */
  readonly shellTimeoutMs: number;
  /** Time that a signalled command has to end, and then the shell to say so. */
  readonly killGraceMs: number;
}

export interface RunCommand {
  readonly command: string | Buffer;
  readonly cwd?: string | undefined;
  readonly env?: Readonly<Record<string, string>> | undefined;
  readonly timeoutMs?: number | undefined;
  /** Takes a piece of output; the shell waits until it resolves. */
  readonly onOutput: (output: Output) => Promise<void>;
}

/** The end of a command, or that of the shell in its place: then with its last state where it was stopped on purpose. */
export type RunEnd =
  | { readonly status: number; readonly cwd: string; readonly isOverdue: boolean }
  | {
      readonly status?: undefined;
      readonly exit: Exit;
      readonly state?: Buffer;
      readonly isOverdue: boolean;
    };

/** By this processes of shells are known after a restart of the server. */
export const SHELL_LABEL = "shell-sessions:shell";
/** Variables and functions of a shell as text. */
const MAX_STATE_BYTES = 16 * 1024 * 1024;
/** Time for the last output of a shell that is gone; its children may hold the pipes for as long as they live. */
const LAST_OUTPUT_MS = 200;

type Stream = "stdout" | "stderr";

interface Run {
  readonly nonce: string;
  readonly onOutput: (output: Output) => Promise<void>;
  readonly begun: Set<Stream>;
  readonly done: Set<Stream>;
  /** Status and directory, as the mark on stdout has them. */
  contents: string | undefined;
  readonly hasBegun: PromiseWithResolvers<void>;
  /** Signals that are being sent to it, also past its end. */
  readonly interrupts: Promise<void>[];
  /** With its status and directory, or with the exit of the shell. */
  readonly ended: PromiseWithResolvers<
    { readonly status: number; readonly cwd: string } | { readonly exit: Exit }
  >;
}

/** A bash that stays, and evaluates commands one after the other. The caller runs one at a time. */
export class Shell {
  readonly #options: ShellOptions;
  readonly #process: Process;
  readonly #abortNonce = newNonce();
  readonly #streams: Readonly<Record<Stream, MarkedOutput>>;
  #run: Run | undefined;
  #state: { readonly nonce: string; readonly told: PromiseWithResolvers<Buffer | undefined> } | undefined;
  #lastState: Buffer | undefined;
  /** Output that is being taken. */
  #taken: Promise<void>[] = [];
  /** The exit of the shell, when its output was read. */
  readonly ended: Promise<Exit>;
  #exit: Exit | undefined;

  private constructor(process: Process, options: ShellOptions) {
    this.#options = options;
    this.#process = process;
    this.#streams = { stdout: this.#marked("stdout"), stderr: this.#marked("stderr") };
    const read = this.#read();
    this.ended = process.exit.then(async (exit) => {
      await fulfilledWithin(read, { clock: options.clock, timeoutMs: LAST_OUTPUT_MS });
      this.#exit = exit;
      // Not by a race with `ended`, which lives longer: its reactions would hold the output of every command.
      this.#run?.ended.resolve({ exit });
      this.#state?.told.resolve(undefined);
      return exit;
    });
  }

  /** @throws SandboxError of the spawn. */
  static async start(options: ShellOptions): Promise<Shell> {
    const { runtime, env, user } = options;
    const args = ["--norc", "--noprofile"];
    const process = await runtime.spawn({
      path: "bash",
      args,
      env,
      cwd: "/",
      user,
      input: "pipe",
      label: SHELL_LABEL,
    });
    const shell = new Shell(process, options);
    shell.#write(Buffer.from(driverScript(shell.#abortNonce)));
    return shell;
  }

  get pid(): number {
    return this.#process.pid;
  }

  get hasEnded(): boolean {
    return this.#exit !== undefined;
  }

  /** Evaluates a command. Ends the shell when it does not take it, or does not come back after its time-out. */
  async run({ timeoutMs, onOutput, ...command }: RunCommand): Promise<RunEnd> {
    const { clock, shellTimeoutMs } = this.#options;
    const run: Run = {
      nonce: newNonce(),
      onOutput,
      begun: new Set(),
      done: new Set(),
      contents: undefined,
      hasBegun: Promise.withResolvers(),
      interrupts: [],
      ended: Promise.withResolvers(),
    };
    this.#run = run;
    if (this.#exit !== undefined) run.ended.resolve({ exit: this.#exit });
    let isOverdue = false;
    const cancels: (() => void)[] = [clock.after(shellTimeoutMs, () => this.close())];
    const cancel = (): void => {
      for (const undo of cancels.splice(0)) undo();
    };
    void run.hasBegun.promise.then(() => {
      cancel();
      if (timeoutMs === undefined) return;
      const expire = (): void => {
        isOverdue = true;
        void this.interrupt("SIGTERM");
      };
      cancels.push(clock.after(timeoutMs, expire));
    });
    this.#write(commandInput({ nonce: run.nonce, ...command }));
    let end = await run.ended.promise;
    cancel();
    this.#run = undefined;
    if (run.interrupts.length > 0 && !("exit" in end)) {
      await Promise.all(run.interrupts);
      end = { exit: await this.#endIdle() };
    }
    return "exit" in end
      ? { ...end, isOverdue, ...(this.#lastState !== undefined && { state: this.#lastState }) }
      : { ...end, isOverdue };
  }

  /** The state of the idle shell; undefined when it ends instead. */
  async state(): Promise<Buffer | undefined> {
    const { clock, shellTimeoutMs } = this.#options;
    const nonce = newNonce();
    const told = Promise.withResolvers<Buffer | undefined>();
    this.#state = { nonce, told };
    if (this.#exit !== undefined) told.resolve(undefined);
    const cancel = clock.after(shellTimeoutMs, () => this.close());
    this.#write(stateInput(nonce));
    const state = await told.promise;
    cancel();
    this.#state = undefined;
    return state;
  }

  /**
   * Signals what the running command has started. The shell itself says its state between two of its commands, and ends
   * there: a loop would go on. One that does not is killed.
   */
  async interrupt(signal: Signal): Promise<void> {
    const run = this.#run;
    if (run === undefined || this.hasEnded) return;
    const interrupted = this.#interrupt(run, signal);
    run.interrupts.push(interrupted);
    await interrupted;
  }

  async #interrupt(run: Run, signal: Signal): Promise<void> {
    const { runtime, clock, killGraceMs } = this.#options;
    await this.#signal("SIGUSR1");
    for (const each of [signal, "SIGKILL"] as const) {
      await signalTree(runtime, this.pid, each, {
        includesRoot: false,
        clock,
        timeoutMs: killGraceMs,
      }).catch(ignoreGone);
      if (await fulfilledWithin(run.ended.promise, { clock, timeoutMs: killGraceMs })) return;
    }
    this.close();
  }

  /**
   * Has the idle shell notice the signal that came too late for its command: it says its state and ends only when it has
   * read something, which would be the next command.
   */
  async #endIdle(): Promise<Exit> {
    const { clock, shellTimeoutMs } = this.#options;
    this.#write(Buffer.from("\\builtin :\n"));
    const cancel = clock.after(shellTimeoutMs, () => this.close());
    const exit = await this.ended;
    cancel();
    return exit;
  }

  /** Ends the shell, and what it left in its process group. */
  close(): void {
    this.#process.kill("SIGKILL", "group").catch(ignoreGone);
  }

  #marked(stream: Stream): MarkedOutput {
    return new MarkedOutput({
      isKnown: (nonce) =>
        nonce === this.#run?.nonce || nonce === this.#state?.nonce || nonce === this.#abortNonce,
      onOutput: (data) => {
        const run = this.#run;
        if (run?.begun.has(stream) === true && !run.done.has(stream)) {
          this.#taken.push(run.onOutput({ stream, data }));
        }
      },
      onMark: (mark) => this.#note(stream, mark),
      maxContents: MAX_STATE_BYTES,
    });
  }

  #note(stream: Stream, { nonce, kind, contents }: Mark): void {
    if (kind === MARKS.state) {
      if (nonce === this.#abortNonce) this.#lastState = contents;
      else if (nonce === this.#state?.nonce) this.#state.told.resolve(contents);
      return;
    }
    const run = this.#run;
    if (nonce !== run?.nonce) return;
    if (kind === MARKS.begun) {
      run.begun.add(stream);
      run.hasBegun.resolve();
      return;
    }
    run.done.add(stream);
    if (stream === "stdout") run.contents = contents.toString();
    // The output is complete only when each stream has its mark.
    if (run.done.size < 2) return;
    const [status = "", ...cwd] = (run.contents ?? "").split("\u001f");
    run.ended.resolve({ status: Number(status), cwd: posix.resolve("/", cwd.join("\u001f")) });
  }

  async #read(): Promise<void> {
    try {
      for await (const { stream, data } of this.#process.output) {
        this.#streams[stream === "stderr" ? "stderr" : "stdout"].feed(data);
        await Promise.all(this.#taken.splice(0));
      }
    } catch {
      this.close();
    }
    for (const marked of Object.values(this.#streams)) marked.end();
  }

  #write(input: Buffer): void {
    // A shell that is gone is seen by its exit.
    this.#process.write(input).catch(ignoreGone);
  }

  #signal(signal: Signal): Promise<void> {
    return this.#process.kill(signal).catch(ignoreGone);
  }
}

/** For what is sent to a process that may have ended. */
export function ignoreGone(error: unknown): undefined {
  if (!(error instanceof SandboxError)) throw error;
}
