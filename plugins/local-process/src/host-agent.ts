import {
  type AgentProcess,
  HostConnection,
  type SpawnRequest,
  agentBinary,
  startHostAgent,
} from "@coppice/agent";
import { SandboxError } from "@coppice/core";

interface HostAgentOptions {
  /**
   * Path of the agent program, or `node` for its replacement without terminals. Default: the built agent, else `node`.
   */
  readonly binary?: string | undefined;
  /** Ends the processes of an agent that died. Called before another agent starts. */
  readonly onDeath: () => Promise<void>;
}

/**
 * The process that starts all others on this host, so that the server never forks. Started on first use. When it dies,
 * its processes are ended, and the next request starts another agent.
 */
export class HostAgent {
  readonly #options: HostAgentOptions;
  readonly #processes = new Set<AgentProcess>();
  readonly #connection = new HostConnection(() =>
    startHostAgent({ binary: this.#options.binary, onEnd: () => this.#end() }),
  );

  constructor(options: HostAgentOptions) {
    this.#options = options;
  }

  get binary(): string | undefined {
    const binary = this.#options.binary ?? agentBinary();
    return binary === "node" ? undefined : binary;
  }

  /** @throws SandboxError unavailable with the reason why no agent can be started. */
  async start(): Promise<void> {
    await this.#connection.get();
  }

  /**
   * Starts a program as a session leader.
   * @throws SandboxError as `Sandbox.spawn`; unavailable when there is no agent, or it dies meanwhile.
   */
  async spawn(request: SpawnRequest): Promise<AgentProcess> {
    const connection = await this.#connection.get();
    if (request.terminal !== undefined && this.binary === undefined) {
      throw new SandboxError(
        "terminal_unavailable",
        "there are no terminals here: the server runs without the agent's program, which makes them",
      );
    }
    const started = await connection.spawn(request);
    this.#processes.add(started);
    void started.exit.then(() => this.#processes.delete(started));
    return started;
  }

  /** Ends the agent and everything it started. Later calls fail. */
  close(): Promise<void> {
    return this.#connection.close();
  }

  async #end(): Promise<void> {
    if (this.#connection.isClosed) return;
    for (const { pid } of this.#processes) killGroup(pid);
    await this.#options.onDeath();
  }
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, "SIGKILL");
  } catch {
    // The group has already ended.
  }
}
