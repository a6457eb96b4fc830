import { chmod, readdir, rm, statfs } from "node:fs/promises";
import { availableParallelism, freemem, loadavg, totalmem } from "node:os";
import { join } from "node:path";
import type { Duplex } from "node:stream";
import type { AgentConnection } from "@coppice/agent";
import {
  type Command,
  type Files,
  type Loss,
  type Process,
  type Sandbox,
  SandboxError,
  sharedUntilFailure,
  type Stats,
  type User,
} from "@coppice/core/backend";

/** A directory and the agent that works in it. */
export class DirectorySandbox implements Sandbox {
  readonly id: string;
  /** Clients that can only connect to addresses reach its ports here: it has the host's network. */
  readonly address = "127.0.0.1";
  readonly files: Files;
  readonly lost: Promise<Loss>;
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #root: string;
  readonly #agent: AgentConnection;
  #isDestroyed = false;

  constructor(id: string, root: string, agent: AgentConnection) {
    this.id = id;
    this.files = agent.files;
    this.#root = root;
    this.#agent = agent;
    this.lost = new Promise((resolve) => {
      void agent.closed.then(() => {
        if (!this.#isDestroyed) resolve("backend lost");
      });
    });
  }

  async user(name?: string): Promise<User> {
    return this.#agent.user(name);
  }

  async spawn({ user: name, cwd, env, ...command }: Command): Promise<Process> {
    const account = await this.#accountOf(name);
    const home = this.#outside(account.home);
    const directory = cwd ?? account.home;
    try {
      return await this.#agent.spawn({
        ...command,
        cwd: this.#outside(directory),
        // The id is what the kit, and you after a crash, find processes by.
        env: { ...env, ...(env["HOME"] === account.home && { HOME: home }), E2B_SANDBOX_ID: this.id },
      });
    } catch (cause) {
      if (!(cause instanceof SandboxError) || cause.reason !== "cwd_not_found") throw cause;
      throw new SandboxError("cwd_not_found", `cwd '${directory}' does not exist`, { cause });
    }
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    return this.#agent.dial(port, signal);
  }

  /** Those of the host, which its sandboxes share. */
  async stats(): Promise<Stats> {
    const { bavail, blocks, bsize } = await statfs(this.#root);
    const cpuCount = availableParallelism();
    return {
      cpuCount,
      cpuUsedPercent: 100 * Math.min(loadavg()[0] ?? 0, cpuCount),
      memoryUsedBytes: totalmem() - freemem(),
      memoryTotalBytes: totalmem(),
      memoryCacheBytes: 0,
      diskUsedBytes: (blocks - bavail) * bsize,
      diskTotalBytes: blocks * bsize,
    };
  }

  async #accountOf(name: string | undefined): Promise<User> {
    try {
      return await this.#agent.user(name);
    } catch (cause) {
      if (!(cause instanceof SandboxError) || cause.code !== "not_found") throw cause;
      throw new SandboxError("user_unknown", `invalid username: '${name}'`, { cause });
    }
  }

  /** Where a path of the sandbox is on the host. A process may have told the host's own. */
  #outside(path: string): string {
    return path === this.#root || path.startsWith(`${this.#root}/`) ? path : join(this.#root, path);
  }

  async #destroy(): Promise<void> {
    this.#isDestroyed = true;
    // Everything that it has started ends first; closing waits for its own end.
    await this.#agent.end();
    await this.#agent.close();
    await removeTree(this.#root);
  }
}

/** Removes a tree whose processes have ended, also where one has closed a folder to its owner. */
export async function removeTree(root: string): Promise<void> {
  // What cannot be opened is told by the removal.
  await openFolders(root).catch(() => undefined);
  // Again where the last file of a process has only just been made.
  await rm(root, { recursive: true, force: true, maxRetries: 5 });
}

async function openFolders(folder: string): Promise<void> {
  await chmod(folder, 0o700);
  for (const entry of await readdir(folder, { withFileTypes: true }))
    if (entry.isDirectory()) await openFolders(join(folder, entry.name));
}
