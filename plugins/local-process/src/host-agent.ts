import { type AgentConnection, type SpawnRequest, agentBinary, startHostAgent } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import { LocalProcess } from "./processes/local-process.js";

export interface HostAgentOptions {
  /** The agent's program, or `node` for the one without terminals; what was built, else `node`, when absent. */
  readonly binary?: string | undefined;
  /** Ends what an agent that died has left. Called before anything else is started. */
  readonly onDeath: () => Promise<void>;
}

interface Running {
  readonly connection: AgentConnection;
  /** Settles when the agent is gone and nothing that it started runs any more. */
  readonly over: Promise<void>;
}

/**
 * The one process of this host that starts all others, so that this one never forks while it serves. It is
 * started when it is first needed; should it die, what it started is ended, and the next request starts another.
 */
export class HostAgent {
  readonly #options: HostAgentOptions;
  readonly #processes = new Set<LocalProcess>();
  #running: Promise<Running> | undefined;
  #isClosed = false;

  constructor(options: HostAgentOptions) {
    this.#options = options;
  }

  /** The program that is used; undefined where a Node process stands in for it. */
  get binary(): string | undefined {
    const binary = this.#options.binary ?? agentBinary();
    return binary === "node" ? undefined : binary;
  }

  /** @throws SandboxError unavailable with why no agent runs and none can be started. */
  async start(): Promise<void> {
    await this.#get();
  }

  /**
   * Starts a program as the leader of a session of its own.
   * @throws SandboxError as `Sandbox.spawn`; unavailable when there is no agent, or it dies meanwhile.
   */
  async spawn(request: SpawnRequest): Promise<LocalProcess> {
    const { connection, over } = await this.#get();
    if (request.terminal !== undefined && this.binary === undefined) {
      throw new SandboxError(
        "terminal_unavailable",
        "there are no terminals here: the server runs without the agent's program, which makes them",
      );
    }
    const started = new LocalProcess(await connection.spawn(request), () => connection.isOver);
    this.#processes.add(started);
    void started.exit.then(() => this.#processes.delete(started));
    if (connection.isOver) void over.then(() => started.agentHasGone());
    return started;
  }

  /** Ends the agent, with everything it started. Nothing can be started afterwards. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const running = await this.#running?.catch(() => undefined);
    await running?.connection.close();
    await running?.over;
  }

  async #get(): Promise<Running> {
    for (;;) {
      if (this.#isClosed) throw new SandboxError("server_stopping", "the server is stopping");
      this.#running ??= this.#start();
      const running = await this.#running;
      if (!running.connection.isOver) return running;
      await running.over;
    }
  }

  async #start(): Promise<Running> {
    try {
      const connection = await startHostAgent({ binary: this.#options.binary });
      return { connection, over: this.#end(connection) };
    } catch (error) {
      this.#running = undefined;
      throw error;
    }
  }

  async #end(connection: AgentConnection): Promise<void> {
    await connection.closed;
    if (!this.#isClosed) {
      for (const each of this.#processes) each.killByNumber();
      await this.#options.onDeath();
    }
    for (const each of this.#processes) each.agentHasGone();
    this.#running = undefined;
  }
}
