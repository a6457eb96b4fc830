import { join } from "node:path";
import type { Duplex } from "node:stream";
import type { AgentProcess } from "@coppice/agent";
import { SandboxError, messageOf } from "@coppice/core";
import {
  sharedUntilFailure,
  type Command,
  type Process,
  type Sandbox,
  type SandboxId,
  type Stats,
  type User,
} from "@coppice/core/backend";
import { findAccount } from "./files/describe-entry.js";
import { asAsked, Tree, WalkError, pathForOthers } from "./files/walk.js";
import type { HostAgent } from "./host-agent.js";
import { killProcesses, ROOT_VARIABLE, type ProcessCensus } from "./processes/host-processes.js";
import { LocalFiles } from "./files/local-files.js";
import { type SandboxDirectory, removeSandboxDirectory } from "./directories/sandbox-directory.js";
import { UsageMeter } from "./processes/usage-meter.js";
import { once } from "node:events";
import { type Socket, connect } from "node:net";

interface LocalSandboxOptions {
  readonly id: SandboxId;
  readonly directory: SandboxDirectory;
  readonly agent: HostAgent;
  readonly census: ProcessCensus;
  readonly settings: LocalSandboxSettings;
  readonly onDestroyed: () => void;
}

export interface LocalSandboxSettings {
  readonly writeInPlaceLimit: number;
  readonly diskScanEntries: number;
  /** Directories searched for programs before those of PATH. */
  readonly programDirectories?: readonly string[] | undefined;
}

/**
 * A directory of this host with the processes started for it.
 *
 * Files see the directory as `/`. Processes see the host: their home and working directory are host paths inside the
 * directory. So relative paths mean the same to both, and so do absolute paths that processes print (see `Tree`).
 */
export class LocalSandbox implements Sandbox {
  readonly id: SandboxId;
  readonly address = LOOPBACK_ADDRESS;
  readonly files: LocalFiles;
  readonly stopping = { stop: () => this.#stop(), start: () => this.#startAnew() };
  readonly destroy = sharedUntilFailure(() => this.#destroy());
  readonly #options: LocalSandboxOptions;
  readonly #tree: Tree;
  readonly #usage: UsageMeter;
  readonly #processes = new Set<AgentProcess>();
  readonly #starting = new Set<Promise<AgentProcess>>();
  #hasStartedAny = false;
  #isDestroyed = false;
  #isStopped = false;

  constructor(options: LocalSandboxOptions) {
    const { root, stage } = options.directory;
    this.id = options.id;
    this.#options = options;
    this.#tree = new Tree(root);
    this.files = new LocalFiles({
      tree: this.#tree,
      root,
      stage,
      writeInPlaceLimit: options.settings.writeInPlaceLimit,
      agentBinary: options.agent.binary,
    });
    this.#usage = new UsageMeter({
      root,
      diskScanEntries: options.settings.diskScanEntries,
      census: options.census,
      changes: () => this.files.changes,
    });
  }

  async user(name?: string): Promise<User> {
    return findAccount(name);
  }

  async spawn(command: Command): Promise<Process> {
    this.#requireLife();
    const account = accountOf(command);
    this.#hasStartedAny = true;
    const starting = this.#start(command, account);
    this.#starting.add(starting);
    try {
      const started = await starting;
      this.#usage.started();
      this.#processes.add(started);
      void started.closed.then(() => this.#processes.delete(started));
      return started;
    } finally {
      this.#starting.delete(starting);
    }
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    this.#requireLife();
    return dialLoopback(port, signal);
  }

  async stats(): Promise<Stats> {
    this.#requireDirectory();
    return this.#usage.measure();
  }

  get cpuSeconds(): number {
    return this.#usage.cpuSeconds;
  }

  /** Ends all of its processes, including those that left their group, session and parent. */
  async endProcesses(): Promise<void> {
    const { directory } = this.#options;
    if (this.#hasStartedAny) await killProcesses(directory.root);
  }

  async #destroy(): Promise<void> {
    this.#isDestroyed = true;
    await this.#endAll();
    await this.files.close();
    await removeSandboxDirectory(this.#options.directory.path);
    this.#options.onDestroyed();
  }

  async #stop(): Promise<void> {
    this.#requireDirectory();
    this.#isStopped = true;
    await this.#endAll();
  }

  async #startAnew(): Promise<void> {
    this.#requireDirectory();
    if (this.#isStopped) await this.#endAll();
    this.#isStopped = false;
  }

  async #endAll(): Promise<void> {
    await Promise.allSettled(this.#starting);
    const processes = [...this.#processes];
    // A process may have ended meanwhile, and so may the agent.
    await Promise.allSettled(processes.map((each) => each.kill("SIGKILL", "group")));
    await this.endProcesses();
    await Promise.all(processes.map(({ exit }) => exit));
    for (const each of processes) each.release();
  }

  async #start(command: Command, account: User): Promise<AgentProcess> {
    const { agent, settings } = this.#options;
    const { root } = this.#options.directory;
    const searchPath = [settings.programDirectories ?? [], command.env["PATH"] ?? []].flat().join(":");
    const cwd = command.cwd ?? account.home;
    using directory = this.#openDirectory(cwd);
    try {
      return await agent.spawn({
        path: command.path,
        args: command.args,
        cwd: directory.path,
        env: {
          ...command.env,
          ...(command.env["HOME"] === account.home && { HOME: join(root, account.home) }),
          ...(searchPath !== "" && { PATH: searchPath }),
          E2B_SANDBOX_ID: this.id,
          [ROOT_VARIABLE]: root,
        },
        input: command.input,
        terminal: command.terminal,
      });
    } catch (error) {
      throw asAsked(error, directory.path, cwd);
    }
  }

  /** Opens a directory so that the agent can change to it, whatever its path leads to later. */
  #openDirectory(path: string): { readonly path: string } & Disposable {
    try {
      const place = this.#tree.resolve(path, { follow: true });
      if (place.entry?.stats.isDirectory())
        return { path: pathForOthers(place.entry), [Symbol.dispose]: () => place[Symbol.dispose]() };
      place[Symbol.dispose]();
    } catch (error) {
      if (!(error instanceof WalkError)) throw error;
    }
    throw new SandboxError("cwd_not_found", `cwd '${path}' does not exist`);
  }

  #requireLife(): void {
    this.#requireDirectory();
    if (this.#isStopped) throw new SandboxError("sandbox_stopped", "the sandbox is stopped");
  }

  #requireDirectory(): void {
    if (this.#isDestroyed) throw new SandboxError("sandbox_ended", "the sandbox has ended");
  }
}

function accountOf(command: Command): User {
  try {
    return findAccount(command.user);
  } catch (error) {
    throw new SandboxError("user_unknown", `invalid username: '${command.user}'`, { cause: error });
  }
}

/** Address on which programs listen that only this host is to reach. */
const LOOPBACK_ADDRESS = "127.0.0.1";
const LOOPBACK = [LOOPBACK_ADDRESS, "::1"];

/**
 * Connects to a port on one of this host's loopback addresses.
 * @throws SandboxError failed_precondition when no process listens there, or the signal's reason.
 */
async function dialLoopback(port: number, signal: AbortSignal): Promise<Socket> {
  let reason: unknown;
  for (const host of LOOPBACK) {
    signal.throwIfAborted();
    const socket = connect({ host, port, noDelay: true, allowHalfOpen: true });
    try {
      await once(socket, "connect", { signal });
      return socket;
    } catch (error) {
      socket.destroy();
      signal.throwIfAborted();
      reason ??= error;
    }
  }
  throw new SandboxError("port_closed", `cannot connect to port ${port}: ${messageOf(reason)}`, {
    cause: reason,
  });
}
