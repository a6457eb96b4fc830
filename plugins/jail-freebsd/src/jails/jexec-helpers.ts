import { rm } from "node:fs/promises";
import { AgentConnection, type AgentProcess, connectSocket } from "@coppice/agent";
import { messageOf, type Logger, fulfilledWithin, systemClock } from "@coppice/core";
import type { Command } from "@coppice/core/backend";
import { type Host, connectSoon } from "../host/host.js";
import type { SandboxPaths } from "./jails.js";

interface JexecHelpersOptions {
  readonly host: Host;
  readonly program: string;
  readonly log: Pick<Logger, "warn">;
}

interface HelperUse {
  readonly user: string;
  readonly signal: AbortSignal;
}

/**
 * The helpers of sandboxes. A helper is an agent on the host, one per sandbox, that starts commands with `jexec
 * e2b-<id>`, without a user or a login class: jexec(8) would read the accounts, login.conf(5) and nsswitch.conf(5) of the
 * sandbox as root. Helpers and their commands outlive the server.
 */
export class JexecHelpers {
  readonly #options: JexecHelpersOptions;
  readonly #started = new Map<string, AgentProcess>();

  constructor(options: JexecHelpersOptions) {
    this.#options = options;
  }

  /**
   * Connects to the helper of a sandbox, and starts it if needed. @throws SandboxError unavailable, or the signal's
   * reason.
   */
  async open(paths: SandboxPaths, use: HelperUse): Promise<AgentConnection> {
    const { helper, name } = paths;
    const { host, program } = this.#options;
    const options = { defaultUser: use.user };
    const found = await connectSocket(helper).catch(() => undefined);
    if (found !== undefined) return AgentConnection.open(found, options);
    // Constant arguments: a client's input reaches the program that jexec(8) runs through a socket alone.
    const words = [name, program, "launch", "3"];
    this.#started.set(helper, await host.serveOutside(helper, "jexec", words));
    return AgentConnection.open(await connectSoon(helper, use.signal), options);
  }

  /** Ends a helper whose commands have ended. A missing one is fine. */
  async remove({ helper, name }: SandboxPaths): Promise<void> {
    const socket = await connectSocket(helper).catch(() => undefined);
    if (socket !== undefined) {
      try {
        await (await AgentConnection.open(socket)).end();
      } catch (error) {
        this.#options.log.warn(
          { sandbox: name, reason: messageOf(error) },
          "helper does not end; killing it",
        );
        await this.#kill(helper);
      }
    }
    this.#started.delete(helper);
    await rm(helper, { force: true });
  }

  async #kill(helper: string): Promise<void> {
    const served = await this.#options.host.served();
    const process = this.#started.get(helper) ?? served.find(({ label }) => label === helper);
    await process?.kill("SIGKILL", "group").catch(() => undefined);
    await process?.exit;
  }
}

/** Limit for a pause that waits for commands to enter the jail. A slower command is stopped like the rest. */
const ENTRY_TIMEOUT_MS = 2_000;

/** Commands of one sandbox, started with jexec(8) by a helper on the host. */
export class JexecCommands {
  /** To the helper, which goes on with its commands for a later server. */
  readonly connection: AgentConnection;
  readonly #entering = new Set<Promise<unknown>>();
  #held: PromiseWithResolvers<void> | undefined;

  constructor(connection: AgentConnection) {
    this.connection = connection;
  }

  /** @throws SandboxError as `Sandbox.spawn`; unavailable when the jail cannot be entered. */
  async spawn(command: Command): Promise<AgentProcess> {
    const entering = this.connection.spawn(command);
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
}
