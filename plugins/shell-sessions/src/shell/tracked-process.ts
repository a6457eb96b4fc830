import { SandboxError } from "@coppice/core";
import type { Exit, Output, Process, Signal } from "@coppice/core/backend";
import type { Shell } from "./shell.js";

/** Bytes that wait for a reader before `push` waits. */
const BUFFER_BYTES = 256 * 1024;

type TrackingShell = Pick<Shell, "pid" | "interrupt">;

/** A command that a shell runs, as a process of the command table. */
export class TrackedProcess implements Process {
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
