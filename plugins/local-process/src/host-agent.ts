import { type AgentConnection, type SpawnRequest, agentBinary, startHostAgent } from "@coppice/agent";
import { SandboxError } from "@coppice/core";
import { LocalProcess } from "./processes/local-process.js";

export interface HostAgentOptions {
  /**
   * Path of the agent program, or `node` for its replacement without terminals. Default: the built agent, else `node`.
   */
  readonly binary?: string | undefined;
  /** Ends the processes of an agent that died. Called before another agent starts. */
  readonly onDeath: () => Promise<void>;
}

interface Running {
  readonly connection: AgentConnection;
  /** Settles when the agent and all processes that it started have ended. */
  readonly over: Promise<void>;
}

/**
 * The process that starts all others on this host, so that the server never forks. Started on first use. When it dies,
 * its processes are ended, and the next request starts another agent.
 */
export class HostAgent {
  readonly #options: HostAgentOptions;
  readonly #processes = new Set<LocalProcess>();
  #running: Promise<Running> | undefined;
  #isClosed = false;

  constructor(options: HostAgentOptions) {
    this.#options = options;
  }

  /** Path of the used program; undefined for the Node process instead of it. */
  get binary(): string | undefined {
    const binary = this.#options.binary ?? agentBinary();
    return binary === "node" ? undefined : binary;
  }

  /** @throws SandboxError unavailable with the reason why no agent can be started. */
  async start(): Promise<void> {
    await this.#get();
  }

  /**
   * Starts a program as a session leader.
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

  /** Ends the agent and everything it started. Later calls fail. */
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
