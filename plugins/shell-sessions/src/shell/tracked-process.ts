import { SandboxError } from "@coppice/core";
import type { Exit, Output, Process, Signal } from "@coppice/core/backend";

/** Bytes that wait for a reader before `push` waits. */
const BUFFER_BYTES = 256 * 1024;

/** A command that a shell runs, as a process of the command table. */
export class TrackedProcess implements Process {
  readonly pid: number;
  readonly output: AsyncIterable<Output>;
  readonly exit: Promise<Exit>;
  readonly #exit = Promise.withResolvers<Exit>();
  readonly #send: (signal: Signal) => Promise<void>;
  readonly #queue: Output[] = [];
  #queuedBytes = 0;
  #isEnded = false;
  /** Nobody reads any more: the rest is dropped. */
  #isLeft = false;
  #changed = Promise.withResolvers<void>();

  /** @param send signals what the shell runs. */
  constructor(pid: number, send: (signal: Signal) => Promise<void>) {
    this.pid = pid;
    this.#send = send;
    this.exit = this.#exit.promise;
    this.output = this.#read();
  }

  /** Resolves when there is room for more. */
  async push(output: Output): Promise<void> {
    if (this.#isLeft || this.#isEnded) return;
    this.#queue.push(output);
    this.#queuedBytes += output.data.length;
    this.#change();
    while (this.#queuedBytes >= BUFFER_BYTES && !this.#isLeft) await this.#changed.promise;
  }

  end(exit: Exit): void {
    this.#isEnded = true;
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
    if (this.#isEnded) throw new SandboxError("process_not_found", "the command has already ended");
    await this.#send(signal);
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
        } else if (this.#isEnded) return;
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
