import type { ChildProcess } from "node:child_process";
import { rmSync } from "node:fs";
import type { Socket } from "node:net";
import { SandboxError, messageOf } from "@coppice/core";
import type { Exit, Process, Signal } from "@coppice/core/backend";
import { announceEnd } from "./pipes.js";
import { ProcessOutput } from "./process-output.js";

/** This side of a process's pipes. */
export interface ProcessStreams {
  readonly stdin: Socket | undefined;
  /** Name of the pipe behind `stdin`; unlinked when the process is over. */
  readonly stdinName: string | undefined;
  readonly stdout: Socket;
  readonly stderr: Socket;
}

/** A child of this server that leads a process group. */
export class LocalProcess implements Process {
  readonly pid: number;
  readonly output: ProcessOutput;
  readonly exit: Promise<Exit>;
  /** Settles when it ended and nobody holds its output any more. */
  readonly closed: Promise<void>;
  readonly #input: Socket | undefined;
  readonly #inputName: string | undefined;
  #stopAnnouncing: (() => void) | undefined;
  #hasEnded = false;
  #isKilled = false;

  constructor(child: ChildProcess & { readonly pid: number }, streams: ProcessStreams) {
    this.pid = child.pid;
    this.output = new ProcessOutput(streams);
    this.#input = streams.stdin;
    this.#inputName = streams.stdinName;
    // Writers hear of a broken pipe themselves; without a listener it would end the server.
    this.#input?.on("error", () => undefined);
    this.exit = new Promise((resolve) => {
      child.once("exit", (code, signal) => {
        this.#hasEnded = true;
        if (this.#isKilled) this.output.finish();
        resolve(exitOf(code, signal));
      });
    });
    this.closed = Promise.all([this.exit, this.output.closed]).then(() => {
      this.#input?.destroy();
      this.#stopAnnouncing?.();
      if (this.#inputName !== undefined) rmSync(this.#inputName, { force: true });
    });
  }

  async write(data: Uint8Array): Promise<void> {
    const input = this.#input;
    if (input === undefined || !input.writable || this.#hasEnded) throw noInput();
    await new Promise<void>((resolve, reject) => {
      input.write(data, (error) => (error ? reject(noInput(error)) : resolve()));
    });
  }

  async closeInput(): Promise<void> {
    const input = this.#input;
    if (input === undefined || !input.writable) return;
    await new Promise<void>((resolve) => {
      input.once("close", () => resolve());
      input.end(() => input.destroy());
    });
    if (this.#inputName !== undefined && !this.#hasEnded) this.#stopAnnouncing = announceEnd(this.#inputName);
  }

  async kill(signal: Signal, scope: "process" | "group" = "process"): Promise<void> {
    // Once it was reaped, its pid may be somebody else's.
    if (this.#hasEnded) throw new SandboxError("not_found", `process with pid ${this.pid} not found`);
    try {
      process.kill(scope === "group" ? -this.pid : this.pid, signal);
    } catch (error) {
      throw new SandboxError("invalid_argument", `error sending signal: ${messageOf(error)}`, {
        cause: error,
      });
    }
    if (signal === "SIGKILL" || signal === "SIGTERM") this.#isKilled = true;
  }

  async resize(): Promise<never> {
    throw new SandboxError("failed_precondition", "the process has no terminal");
  }

  /** Ends its whole group and lets go of its pipes. */
  abandon(): void {
    if (!this.#hasEnded) {
      try {
        process.kill(-this.pid, "SIGKILL");
      } catch {
        // It has just ended; what it started is found by its environment.
      }
    }
    this.#input?.destroy();
    this.output.destroy();
  }
}

function exitOf(code: number | null, signal: NodeJS.Signals | null): Exit {
  if (code !== null) return { code };
  // Node has no names for real-time signals; a shell would say 128 and more.
  return signal ? { signal } : { code: 128 };
}

function noInput(cause?: unknown): SandboxError {
  return new SandboxError("failed_precondition", "stdin not enabled or closed", { cause });
}
