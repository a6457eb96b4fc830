import { SandboxError } from "../kernel/errors.js";
import type { User } from "../sandbox/contract/backend.js";
import type { Files } from "../sandbox/contract/files.js";
import type { Command, Exit, Output, Process, Signal, TerminalSize } from "../sandbox/contract/process.js";

/** A scripted program's view of its process. */
export interface ScriptedProcess {
  readonly pid: number;
  readonly args: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  readonly user: User;
  /** Current size of its terminal; undefined without one. */
  readonly terminal: TerminalSize | undefined;
  readonly files: Files;
  /** Its input; ends when that is closed. */
  readonly stdin: AsyncIterable<Uint8Array>;
  /** Writes; resolves when there is room again, rejects once the process was killed. */
  readonly stdout: (data: string | Uint8Array) => Promise<void>;
  readonly stderr: (data: string | Uint8Array) => Promise<void>;
  /** Handles a signal that would end it. SIGKILL cannot be caught. */
  readonly trap: (signal: Signal, handler: () => void) => void;
  readonly killed: AbortSignal;
}

/** A scripted program: returns its exit code, or nothing for 0. A thrown error goes to stderr, with code 1. */
export type Program = (process: ScriptedProcess) => number | void | Promise<number | void>;

export interface MemoryProcessOptions {
  readonly pid: number;
  /** Undefined: there is no such program. */
  readonly program: Program | undefined;
  readonly command: Command;
  readonly cwd: string;
  readonly user: User;
  readonly files: Files;
  readonly onExit: () => void;
}

// Capacity of a Linux pipe.
const PIPE_BYTES = 65_536;
const NOT_FOUND = 127;
const HARMLESS: ReadonlySet<Signal> = new Set([
  "SIGCHLD",
  "SIGCONT",
  "SIGURG",
  "SIGWINCH",
  "SIGSTOP",
  "SIGTSTP",
]);

/** A process that runs a function. */
export class MemoryProcess implements Process {
  readonly pid: number;
  readonly output: AsyncIterable<Output>;
  readonly exit: Promise<Exit>;
  readonly #written = new Pipe<Output>();
  readonly #input = new Pipe<Uint8Array>();
  readonly #traps = new Map<Signal, () => void>();
  readonly #killed = new AbortController();
  readonly #ended = Promise.withResolvers<Exit>();
  readonly #onExit: () => void;
  #isInputOpen: boolean;
  #terminal: TerminalSize | undefined;
  #hasExited = false;

  constructor(options: MemoryProcessOptions) {
    const { command } = options;
    this.pid = options.pid;
    this.exit = this.#ended.promise;
    this.#onExit = options.onExit;
    this.#terminal = command.terminal;
    this.#isInputOpen = command.terminal !== undefined || command.input !== "none";
    if (!this.#isInputOpen) this.#input.end();
    this.output = this.#written;
    void this.#run(options);
  }

  async write(data: Uint8Array): Promise<void> {
    if (!this.#isInputOpen || this.#hasExited) {
      throw new SandboxError("stdin_closed", `process ${this.pid} has no open stdin`);
    }
    await this.#input.push(Uint8Array.from(data), data.length);
  }

  async closeInput(): Promise<void> {
    this.#isInputOpen = false;
    this.#input.end();
  }

  async kill(signal: Signal): Promise<void> {
    if (this.#hasExited)
      throw new SandboxError("process_not_found", `process with pid ${this.pid} not found`);
    const trap = signal === "SIGKILL" ? undefined : this.#traps.get(signal);
    if (trap !== undefined) trap();
    else if (!HARMLESS.has(signal)) this.#leave({ signal });
  }

  async resize(size: TerminalSize): Promise<void> {
    if (this.#terminal === undefined) {
      throw new SandboxError("terminal_missing", `process ${this.pid} has no terminal`);
    }
    this.#terminal = size;
    this.#traps.get("SIGWINCH")?.();
  }

  async #run({ program, command, cwd, user, files }: MemoryProcessOptions): Promise<void> {
    const write = async (stream: Output["stream"], data: string | Uint8Array): Promise<void> => {
      this.#killed.signal.throwIfAborted();
      const bytes = Buffer.from(data);
      await this.#written.push(
        { stream: this.#terminal === undefined ? stream : "terminal", data: bytes },
        bytes.length,
      );
    };
    // `spawn` returns before the program's first step, as for a real one.
    await Promise.resolve();
    try {
      if (program === undefined) {
        await write("stderr", `${command.path}: not found\n`);
        return this.#leave({ code: NOT_FOUND });
      }
      const sizeNow = (): TerminalSize | undefined => this.#terminal;
      const code = await program({
        pid: this.pid,
        args: command.args,
        env: command.env,
        cwd,
        user,
        files,
        get terminal() {
          return sizeNow();
        },
        stdin: this.#input,
        stdout: (data) => write("stdout", data),
        stderr: (data) => write("stderr", data),
        trap: (signal, handler) => void this.#traps.set(signal, handler),
        killed: this.#killed.signal,
      });
      this.#leave({ code: code ?? 0 });
    } catch (error) {
      if (!this.#hasExited) await write("stderr", `${String(error)}\n`).catch(() => {});
      this.#leave({ code: 1 });
    }
  }

  #leave(exit: Exit): void {
    if (this.#hasExited) return;
    this.#hasExited = true;
    this.#written.end();
    this.#input.end();
    this.#onExit();
    this.#ended.resolve(exit);
    this.#killed.abort(new SandboxError("process_ended", "the process has ended"));
  }
}

/** A pipe of 64 KiB that blocks its writer when full. It can be read once. */
class Pipe<T> implements AsyncIterable<T> {
  #chunks: { readonly value: T; readonly sizeBytes: number }[] = [];
  #heldBytes = 0;
  #isOver = false;
  #isDiscarding = false;
  #wakeReader: (() => void) | undefined;
  #wakeWriters: (() => void)[] = [];

  async push(value: T, sizeBytes: number): Promise<void> {
    if (this.#isOver || this.#isDiscarding || sizeBytes === 0) return;
    this.#chunks.push({ value, sizeBytes });
    this.#heldBytes += sizeBytes;
    this.#wakeReader?.();
    while (this.#heldBytes >= PIPE_BYTES && !this.#isOver && !this.#isDiscarding) {
      await new Promise<void>((resolve) => this.#wakeWriters.push(resolve));
    }
  }

  end(): void {
    this.#isOver = true;
    this.#wakeReader?.();
    this.#letWritersGo();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    try {
      for (;;) {
        const chunk = this.#chunks.shift();
        if (chunk !== undefined) {
          this.#heldBytes -= chunk.sizeBytes;
          if (this.#heldBytes < PIPE_BYTES) this.#letWritersGo();
          yield chunk.value;
        } else if (this.#isOver) return;
        else await new Promise<void>((resolve) => (this.#wakeReader = resolve));
      }
    } finally {
      this.#isDiscarding = true;
      this.#chunks = [];
      this.#letWritersGo();
    }
  }

  #letWritersGo(): void {
    for (const wake of this.#wakeWriters.splice(0)) wake();
  }
}
