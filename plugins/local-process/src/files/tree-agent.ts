import { type AgentConnection, type AgentFiles, startHostAgent } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import { findAccount } from "./accounts.js";

export interface TreeAgentOptions {
  readonly binary: string;
  /** Directory of this host that the agent sees as `/`; no path leads out of it. */
  readonly root: string;
  readonly writeInPlaceLimit: number;
}

/** A use of the agent, ended by disposal. */
export interface AgentUse extends AsyncDisposable {
  readonly files: AgentFiles;
}

/** Agent for the files of one tree. It runs while it has uses. */
export class TreeAgent {
  readonly #options: TreeAgentOptions;
  #running: Promise<AgentConnection> | undefined;
  #closing: Promise<void> | undefined;
  #isClosed = false;
  #uses = 0;

  constructor(options: TreeAgentOptions) {
    this.#options = options;
  }

  /** Starts the agent if needed. @throws SandboxError unavailable, and not_found after `close` */
  async use(): Promise<AgentUse> {
    if (this.#isClosed) throw new SandboxError("sandbox_ended", "the sandbox has ended");
    this.#uses++;
    let isOver = false;
    const end = async (): Promise<void> => {
      if (!isOver) this.#end();
      isOver = true;
      await this.#closing;
    };
    try {
      this.#running ??= this.#start();
      const { files } = await this.#running;
      return { files, [Symbol.asyncDispose]: end };
    } catch (error) {
      await end();
      throw error;
    }
  }

  /** Adds a use, if there are others; undefined otherwise. */
  async join(): Promise<AgentUse | undefined> {
    return this.#uses === 0 ? undefined : this.use();
  }

  /** Ends the agent under all of its uses. An operation that has begun before must not start another one after. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const running = this.#running;
    this.#running = undefined;
    await running?.then((agent) => agent.close()).catch(() => undefined);
    await this.#closing;
  }

  #end(): void {
    if (--this.#uses > 0) return;
    this.#closing = this.#running?.then((agent) => agent.close()).catch(() => undefined);
    this.#running = undefined;
  }

  #start(): Promise<AgentConnection> {
    const started = startHostAgent({ ...this.#options, defaultUser: findAccount() });
    const forget = (): void => {
      // After a crash the next use starts another agent.
      if (this.#running === started) this.#running = undefined;
    };
    void started.then(({ closed }) => closed.then(forget), forget);
    return started;
  }
}
