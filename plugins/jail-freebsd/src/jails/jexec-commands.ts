import type { AgentConnection, AgentProcess } from "@coppice/agent";
import { fulfilledWithin, systemClock } from "@coppice/core";
import type { Command } from "@coppice/core/backend";

/** Limit for a pause that waits for commands to enter the jail. A slower command is stopped like the rest. */
const ENTRY_TIMEOUT_MS = 2_000;

/** Commands of one sandbox, started with jexec(8) by a helper on the host. */
export class JexecCommands {
  readonly #helper: AgentConnection;
  readonly #entering = new Set<Promise<unknown>>();
  #held: PromiseWithResolvers<void> | undefined;

  constructor(helper: AgentConnection) {
    this.#helper = helper;
  }

  /** @throws SandboxError as `Sandbox.spawn`; unavailable when the jail cannot be entered. */
  async spawn(command: Command): Promise<AgentProcess> {
    const entering = this.#helper.spawn(command);
    this.#entering.add(entering);
    try {
      return await entering;
    } finally {
      this.#entering.delete(entering);
    }
  }

  get isHeld(): boolean {
    return this.#held !== undefined;
  }

  /** Resolves once commands are not held. */
  async ready(): Promise<void> {
    while (this.#held !== undefined) await this.#held.promise;
  }

  /**
   * Holds new commands, and waits for those that are entering the jail: a command that enters while its processes are
   * stopped would run in a paused jail.
   */
  async hold(): Promise<void> {
    this.#held ??= Promise.withResolvers();
    const entered = Promise.allSettled(this.#entering);
    await fulfilledWithin(entered, { clock: systemClock, timeoutMs: ENTRY_TIMEOUT_MS });
  }

  release(): void {
    this.#held?.resolve();
    this.#held = undefined;
  }

  /** Commands that the helper ran before this server connected, oldest first. */
  async processes(): Promise<readonly AgentProcess[]> {
    return this.#helper.processes();
  }

  /** Settles when the connection to the helper ends. Never rejects. */
  get closed(): Promise<void> {
    return this.#helper.closed;
  }

  /** Disconnects; the helper and its commands keep running for a later server. */
  async close(): Promise<void> {
    await this.#helper.close();
  }
}
