import type { AgentProcess } from "@coppice/agent";
import type { Exit, Output, Process, Signal, TerminalSize } from "@coppice/core/backend";

/** A process that the host's agent started, as the leader of a session. */
export class LocalProcess implements Process {
  readonly pid: number;
  readonly output: AsyncIterable<Output>;
  readonly exit: Promise<Exit>;
  /** Settles when it has ended and all of its output was read, or is not wanted. */
  readonly closed: Promise<void>;
  readonly #started: AgentProcess;
  readonly #exit = Promise.withResolvers<Exit>();

  /** @param isAgentOver whether the agent is gone: what it then says of the end was not seen by anybody. */
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

  /** Lets go of its output, which may be held open by somebody who was not ended. Only after its exit. */
  release(): void {
    this.#started.release();
  }

  /** Ends its whole group without the agent, which is gone. */
  killByNumber(): void {
    try {
      process.kill(-this.pid, "SIGKILL");
    } catch {
      // All of it has ended.
    }
  }

  /** Says that nobody is left who could tell how it ended, and that it was made to end. */
  agentHasGone(): void {
    this.#exit.resolve({ signal: "SIGKILL" });
  }
}

/** The same, with a call when its end was seen or its reader has left. */
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
