import { mkdir, realpath } from "node:fs/promises";
import { tmpdir } from "node:os";
import { resolve } from "node:path";
import { type Logger, SandboxError, messageOf } from "@coppice/core";
import type { Sandbox, SandboxBackend, SandboxSpec } from "@coppice/core/backend";
import { HostAgent } from "./host-agent.js";
import { killProcesses, ProcessCensus } from "./processes/host-processes.js";
import { LocalSandbox, type LocalSandboxSettings } from "./local-sandbox.js";
import {
  type Owner,
  currentOwner,
  abandonedDirectories,
  makeSandboxDirectory,
  removeSandboxDirectory,
  sandboxDirectoryAt,
} from "./directories/sandbox-directory.js";
import { hold, pathForOthers } from "./files/walk.js";
import { REASONS } from "./reasons.js";

export interface LocalProcessSettings extends LocalSandboxSettings {
  /** Directory for the trees of sandboxes; the system's directory for temporary files when absent. */
  readonly directory?: string | undefined;
  /** Program that starts processes: the agent, or `node`. Default: the built agent, else `node`. */
  readonly agentBinary?: string | undefined;
}

/** Sandboxes as directories and plain processes of this host. Ignores templates and limits. */
export class LocalProcessBackend implements SandboxBackend {
  readonly name = "local-process";
  readonly isolated = false;
  readonly #settings: LocalProcessSettings;
  readonly #parent: string;
  readonly #log: Pick<Logger, "error">;
  readonly #sandboxes = new Set<LocalSandbox>();
  readonly #census = new ProcessCensus();
  #owner: Promise<Owner> | undefined;
  readonly agent: HostAgent;

  constructor(settings: LocalProcessSettings, log: Pick<Logger, "error">) {
    this.#settings = settings;
    this.#parent = resolve(settings.directory ?? tmpdir());
    this.#log = log;
    this.agent = new HostAgent({ binary: settings.agentBinary, onDeath: () => this.#onDeath() });
  }

  async check(): Promise<void> {
    try {
      await mkdir(this.#parent, { recursive: true, mode: 0o700 });
      await this.#tryProgram();
    } catch (error) {
      const message = `local-process cannot use this host: ${messageOf(error)}`;
      throw new SandboxError("host_unusable", message, { cause: error });
    }
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    const { id } = spec;
    if (!spec.allowInternetAccess) {
      throw new SandboxError(
        REASONS.internet_not_closable,
        "sandboxes of backend 'local-process' use the host's network: they cannot be kept from the internet",
      );
    }
    const directory = await makeSandboxDirectory(
      { parent: this.#parent, id, owner: await (this.#owner ??= currentOwner()) },
      signal,
    );
    try {
      const sandbox = new LocalSandbox({
        id,
        directory,
        agent: this.agent,
        census: this.#census,
        settings: this.#settings,
        onDestroyed: () => this.#sandboxes.delete(sandbox),
      });
      this.#sandboxes.add(sandbox);
      return sandbox;
    } catch (error) {
      await removeSandboxDirectory(directory.path);
      throw error;
    }
  }

  /**
   * Recovers no sandbox: an agent and its processes end with their server. Removes remains of ended servers, but not
   * those of running ones.
   */
  async recover(): Promise<readonly Sandbox[]> {
    for (const path of await abandonedDirectories(this.#parent)) {
      await killProcesses(sandboxDirectoryAt(path).root);
      await removeSandboxDirectory(path);
    }
    return [];
  }

  /** Ends the agent and all processes. Remaining sandboxes can start none afterwards. */
  async close(): Promise<void> {
    await this.agent.close();
  }

  /** Tests what a command needs: an agent, a program, and a held working directory. */
  async #tryProgram(): Promise<void> {
    using directory = hold(await realpath(this.#parent));
    const tried = await this.agent.spawn({
      path: "true",
      args: [],
      env: { PATH: "/usr/bin:/bin" },
      cwd: pathForOthers(directory),
      input: "none",
    });
    for await (const { data } of tried.output) throw new Error(Buffer.from(data).toString().trim());
    const { code } = await tried.exit;
    if (code !== 0) throw new Error(`the program \`true\` ended with exit code ${code}`);
  }

  /** Ends the processes of a dead agent, which can no longer be controlled. */
  async #onDeath(): Promise<void> {
    this.#log.error(
      {},
      "the agent has died: its processes are ended, and the next command starts another agent",
    );
    for (const sandbox of this.#sandboxes) {
      await sandbox.endProcesses().catch((error: unknown) => {
        this.#log.error({ sandbox: sandbox.id, err: error }, "processes of a sandbox outlive their agent");
      });
    }
  }
}
