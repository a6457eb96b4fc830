import { rm } from "node:fs/promises";
import { AgentConnection, type AgentProcess } from "@coppice/agent";
import { messageOf, type Logger } from "@coppice/core";
import { type Host, connectSoon, connectTo } from "../host/host.js";
import type { SandboxPaths } from "./sandbox-paths.js";

export interface JexecHelpersOptions {
  readonly host: Host;
  /** The agent's program inside. */
  readonly program: string;
  readonly log: Pick<Logger, "warn">;
}

export interface HelperUse {
  /** Who runs commands when nobody is named. */
  readonly user: string;
  readonly signal: AbortSignal;
}

/**
 * The helpers of sandboxes: agents on the host, one for each, that start what they are asked for by
 * `jexec -l -U root e2b-<id>`. They outlive the server like what they have started.
 */
export class JexecHelpers {
  readonly #options: JexecHelpersOptions;
  readonly #started = new Map<string, AgentProcess>();

  constructor(options: JexecHelpersOptions) {
    this.#options = options;
  }

  /** The helper of a sandbox, which is started unless it is there. @throws SandboxError unavailable, or the signal's reason. */
  async open(paths: SandboxPaths, use: HelperUse): Promise<AgentConnection> {
    const found = await this.find(paths, use);
    if (found !== undefined) return found;
    const { helper, name } = paths;
    const { host, program } = this.#options;
    // What a client says goes through a socket to what jexec(8) runs: these words are the same each time.
    const words = ["-l", "-U", "root", name, program, "launch", "3"];
    this.#started.set(helper, await host.serveOutside(helper, "jexec", words));
    return AgentConnection.open(await connectSoon(helper, use.signal), { defaultUser: use.user });
  }

  /** The helper of a sandbox that has one. */
  async find({ helper }: SandboxPaths, { user }: HelperUse): Promise<AgentConnection | undefined> {
    const socket = await connectTo(helper).catch(() => undefined);
    return socket && AgentConnection.open(socket, { defaultUser: user });
  }

  /** Ends a helper, whose commands have ended. A missing one is fine. */
  async remove({ helper, name }: SandboxPaths): Promise<void> {
    const socket = await connectTo(helper).catch(() => undefined);
    if (socket !== undefined) {
      try {
        await (await AgentConnection.open(socket)).end();
      } catch (error) {
        this.#options.log.warn({ sandbox: name, reason: messageOf(error) }, "a helper is killed");
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
