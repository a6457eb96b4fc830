import type { AgentProcess } from "@coppice/agent";
import type { Exit, Output, Process, Signal, TerminalSize } from "@coppice/core/backend";

/** A process that the host's agent started as a session leader. */
export class LocalProcess implements Process {
  readonly pid: number;
  readonly output: AsyncIterable<Output>;
  readonly exit: Promise<Exit>;
  /** Settles when it has ended and its output was read or dropped. */
  readonly closed: Promise<void>;
  readonly #started: AgentProcess;
  readonly #exit = Promise.withResolvers<Exit>();

  /** @param isAgentOver true when the agent is gone: it then did not see the end of the process. */
  constructor(started: AgentProcess, isAgentOver: () => boolean) {
    this.#started = started;
    this.pid = started.pid;
    this.exit = this.#exit.promise;
    const outputOver = Promise.withResolvers<void>();
    this.output = watched(started.output, () => outputOver.resolve());
    this.closed = Promise.all([this.exit, outputOver.promise]).then(() => undefined);
    void started.exit.then((exit) => {
      if (!isAgentOver()) this.#exit.resolve(exit);
    });
  }

  write(data: Uint8Array): Promise<void> {
    return this.#started.write(data);
  }

  closeInput(): Promise<void> {
    return this.#started.closeInput();
  }

  kill(signal: Signal, scope?: "process" | "group"): Promise<void> {
    return this.#started.kill(signal, scope);
  }

  resize(size: TerminalSize): Promise<void> {
    return this.#started.resize(size);
  }

  /** Drops its output, which a surviving process may hold open. Call only after its exit. */
  release(): void {
    this.#started.release();
  }

  /** Ends its process group without the agent, which is gone. */
  killByNumber(): void {
    try {
      process.kill(-this.pid, "SIGKILL");
    } catch {
      // The group has already ended.
    }
  }

  /** Reports SIGKILL as its exit, because the agent that could report it is gone. */
  agentHasGone(): void {
    this.#exit.resolve({ signal: "SIGKILL" });
  }
}

/** The same output, with a call at its end or when its reader stops. */
function watched(output: AsyncIterable<Output>, onEnd: () => void): AsyncIterable<Output> {
  return {
    [Symbol.asyncIterator]() {
      const iterator = output[Symbol.asyncIterator]();
      return {
        async next() {
          const result = await iterator.next();
          if (result.done === true) onEnd();
          return result;
        },
        async return() {
          onEnd();
          return (await iterator.return?.()) ?? { done: true, value: undefined };
        },
      };
    },
  };
}
