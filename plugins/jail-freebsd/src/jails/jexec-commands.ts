import type { AgentConnection, AgentProcess } from "@coppice/agent";
import type { Command } from "@coppice/core/backend";

/** How long a pause waits for commands that are on their way into the jail. One that is stuck there is stopped with it. */
const ENTRY_TIMEOUT_MS = 2_000;

/** The commands of a sandbox, each started by jexec(8) through a helper on the host. */
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

  /** Resolves at once, or with the release of those that are held. */
  async ready(): Promise<void> {
    while (this.#held !== undefined) await this.#held.promise;
  }

  /**
   * Holds those that are not ready yet, and waits for those that are on their way: what enters a jail whose
   * processes are being stopped would run in it.
   */
  async hold(): Promise<void> {
    this.#held ??= Promise.withResolvers();
    const { promise, resolve } = Promise.withResolvers<void>();
    const timer = setTimeout(resolve, ENTRY_TIMEOUT_MS);
    await Promise.race([Promise.allSettled(this.#entering), promise]);
    clearTimeout(timer);
  }

  /** Lets those that were held go on. */
  release(): void {
    this.#held?.resolve();
    this.#held = undefined;
  }

  /** Commands that the helper had when this server came, oldest first. */
  async processes(): Promise<readonly AgentProcess[]> {
    return this.#helper.processes();
  }

  /** Settles when nothing more is heard of the helper. Never rejects. */
  get closed(): Promise<void> {
    return this.#helper.closed;
  }

  /** Leaves the helper, and what it has started, to a later server. */
  async close(): Promise<void> {
    await this.#helper.close();
  }
}
