import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, rename, rm, rmdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentConnection, agentBinary } from "@coppice/agent";
import { SandboxError, messageOf, type Logger } from "@coppice/core";
import {
  type FullLimits,
  fullLimits,
  type Sandbox,
  type SandboxBackend,
  type SandboxSpec,
  type SnapshotId,
} from "@coppice/core/backend";
import { type OwnedDataset, Datasets } from "./datasets.js";
import { Host, connectSoon } from "./host.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import { JailSandbox } from "./jail-sandbox.js";
import { Jails } from "./jails.js";
import { type SandboxPaths, sandboxPaths } from "./sandbox-paths.js";
import { Templates } from "./templates.js";

/** What there is once the backend was opened. */
interface Opened {
  readonly host: Host;
  readonly datasets: Datasets;
  readonly jails: Jails;
  readonly templates: Templates;
  /** Directory on the host with the agent's program alone, which is mounted in every jail. */
  readonly programs: string;
}

const AGENT = "coppice-agent";
const AGENT_TIMEOUT_MS = 10_000;
/** sun_path of FreeBSD without its NUL, the shortest there is. */
const LONGEST_SOCKET_PATH = 103;
const LONGEST_ID = 64;

/** Makes sandboxes out of clones of ZFS snapshots and jails. */
export class JailBackend implements SandboxBackend {
  readonly name = "jail-freebsd";
  readonly isolated = true;
  readonly snapshots = {
    list: async () => [...(await (await this.#open()).datasets.snapshots()).keys()],
    remove: async (id: SnapshotId) => (await this.#open()).datasets.removeSnapshot(id),
  };
  readonly #settings: JailSettings;
  readonly #log: Logger;
  readonly #alive = new Map<string, JailSandbox>();
  #opening: Promise<Opened> | undefined;

  constructor(settings: JailSettings, log: Logger) {
    this.#settings = settings;
    this.#log = log;
  }

  async check(): Promise<void> {
    const problems: string[] = [];
    try {
      const { datasets, templates, host, jails } = await this.#open();
      const { stderr, code } = await host.try("zfs", ["get", "-H", "-o", "value", "type", datasets.parent]);
      if (code !== 0) problems.push(`dataset ${datasets.parent}: ${stderr.trim()}`);
      const { snapshot } = templates.get("base");
      if (code === 0 && !(await datasets.hasSnapshot(snapshot)))
        problems.push(`there is no snapshot ${snapshot}`);
      await jails.names();
    } catch (error) {
      problems.push(messageOf(error));
    }
    if (problems.length === 0) return;
    const message = `jail-freebsd cannot use this host: ${problems.join("; ")}`;
    throw new SandboxError("failed_precondition", message);
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted();
    const opened = await this.#open();
    const { datasets, jails, templates } = opened;
    const paths = sandboxPaths(this.#settings.directory, spec.id);
    const limits = fullLimits(spec.limits, this.#settings.limits);
    const template = templates.get(spec.template);
    await datasets.clone(paths.name, {
      origin: await originOf(opened, spec),
      mountPoint: paths.root,
      refquotaMiB: limits.diskMiB,
      properties: { id: spec.id, template: spec.template, limits: limitsText(limits) },
    });
    try {
      signal.throwIfAborted();
      const { agentInside, devfsRuleset, procfs } = this.#settings;
      await jails.create(paths, {
        name: paths.name,
        hostname: spec.id,
        root: paths.root,
        devfsRuleset,
        procfs,
        mounts: [...template.mounts, { source: opened.programs, target: agentInside, readOnly: true }],
        known: new Set(),
      });
      signal.throwIfAborted();
      await this.#startAgent(opened, paths);
      const sandbox = await this.#connect(
        opened,
        { id: spec.id, paths, user: template.user, limits },
        signal,
      );
      await datasets.set(paths.name, "state", "running");
      signal.throwIfAborted();
      return sandbox;
    } catch (error) {
      this.#alive.delete(spec.id);
      await this.#clear(opened, paths).catch((failure: unknown) => {
        // The next start tries again.
        this.#log.warn({ sandbox: spec.id, err: failure }, "a sandbox that failed was not cleared away");
      });
      throw error;
    }
  }

  async recover(): Promise<readonly Sandbox[]> {
    const opened = await this.#open();
    const running = await opened.jails.names();
    const owned = (await opened.datasets.owned()).filter(({ name }) => !this.#alive.has(idOf(name)));
    const adopted = await Promise.all(owned.map((dataset) => this.#adopt(opened, dataset, running)));
    await this.#removeOthers(opened);
    await opened.datasets.collect();
    return adopted.filter((sandbox) => sandbox !== undefined);
  }

  /** Leaves sandboxes that are still alive to the next server. */
  async close(): Promise<void> {
    const opened = await this.#opening?.catch(() => undefined);
    const isEmpty = this.#alive.size === 0;
    await Promise.all([...this.#alive.values()].map((sandbox) => sandbox.leave()));
    this.#alive.clear();
    await opened?.host.close({ isEmpty });
    this.#opening = undefined;
  }

  async #startAgent({ host }: Opened, { name, socket }: SandboxPaths): Promise<void> {
    const program = join(this.#settings.agentInside, AGENT);
    await host.serve(socket, "jexec", ["-l", "-U", "root", name, program, "listen", "3"]);
  }

  async #connect(
    opened: Opened,
    sandbox: {
      readonly id: string;
      readonly paths: SandboxPaths;
      readonly user: string;
      readonly limits: FullLimits;
    },
    signal: AbortSignal,
  ): Promise<JailSandbox> {
    const { id, paths, user, limits } = sandbox;
    const soon = AbortSignal.any([signal, AbortSignal.timeout(AGENT_TIMEOUT_MS)]);
    const agent = await AgentConnection.open(await connectSoon(paths.socket, soon), { defaultUser: user });
    const made = new JailSandbox({
      id,
      name: paths.name,
      limits,
      agent,
      datasets: opened.datasets,
      jails: opened.jails,
      onDestroy: async () => {
        await this.#clear(opened, paths, agent);
        this.#alive.delete(id);
      },
    });
    this.#alive.set(id, made);
    return made;
  }

  /** Takes over a sandbox of an earlier server, or clears away what is left of it. */
  async #adopt(
    opened: Opened,
    { name, state, properties }: OwnedDataset,
    running: ReadonlySet<string>,
  ): Promise<JailSandbox | undefined> {
    if (state === "retained") return undefined;
    const id = idOf(name);
    const paths = sandboxPaths(this.#settings.directory, id);
    const template = properties.get("template") ?? "";
    if (state === "running" && running.has(name)) {
      try {
        // A server may have ended while it was paused; the agent answers only when it can run.
        await opened.jails.resume(name);
        const limits = limitsOf(properties.get("limits"), this.#settings.limits);
        const { user } = opened.templates.get(template);
        return await this.#connect(
          opened,
          { id, paths, user, limits },
          AbortSignal.timeout(AGENT_TIMEOUT_MS),
        );
      } catch (error) {
        this.#log.warn({ sandbox: id, err: error }, "a sandbox does not answer and is removed");
      }
    }
    await this.#clear(opened, paths);
    return undefined;
  }

  /** What has a file or a socket here, and no dataset: a server ended between two steps. */
  async #removeOthers(opened: Opened): Promise<void> {
    const owned = new Set((await opened.datasets.owned()).map(({ name }) => idOf(name)));
    const { directory } = this.#settings;
    const names = await readdir(join(directory, "conf"));
    const sockets = await readdir(join(directory, "sockets"));
    const ids = new Set([...names.map((name) => idOf(name.split(".")[0] ?? "")), ...sockets]);
    for (const id of ids) {
      if (!owned.has(id) && !this.#alive.has(id)) await this.#clear(opened, sandboxPaths(directory, id));
    }
  }

  /** Removes a sandbox, whatever there is of it: every step is content with nothing. */
  async #clear({ datasets, jails }: Opened, paths: SandboxPaths, agent?: AgentConnection): Promise<void> {
    await jails.remove(paths);
    // Its end is what the operations that are under way are told of.
    await agent?.closed;
    await datasets.destroy(paths.name);
    await datasets.collect();
    await rmdir(paths.root).catch(ifMissing);
    await rm(paths.socket, { force: true });
  }

  #open(): Promise<Opened> {
    this.#opening ??= this.#reallyOpen().catch((error: unknown) => {
      this.#opening = undefined;
      throw error;
    });
    return this.#opening;
  }

  async #reallyOpen(): Promise<Opened> {
    const { dataset, directory, hostCommandTimeout, programs } = this.#settings;
    const agent = this.#settings.agent ?? agentBinary();
    if (agent === undefined)
      throw new Error("the agent has not been built: install a C compiler and run set-up");
    const longest = join(directory, "sockets", "x".repeat(LONGEST_ID));
    if (Buffer.byteLength(longest) > LONGEST_SOCKET_PATH)
      throw new Error(`directory ${directory} is too long`);
    for (const name of ["conf", "roots", "sockets", "programs"]) {
      // Root of a sandbox makes setuid files that no user of the host may reach.
      await mkdir(join(directory, name), { recursive: true, mode: 0o700 });
    }
    const host = new Host({
      programs,
      agent,
      socket: join(directory, "host.sock"),
      timeoutMs: hostCommandTimeout,
      log: this.#log,
    });
    const owner = createHash("sha256").update(directory).digest("hex").slice(0, 16);
    const datasets = new Datasets(host, { parent: dataset, owner });
    return {
      host,
      datasets,
      jails: new Jails(host),
      templates: new Templates(this.#settings.templates, datasets),
      programs: await this.#keepAgent(agent),
    };
  }

  /** Jails that run keep the file that they were started from: it is replaced, never written to. */
  async #keepAgent(agent: string): Promise<string> {
    const program = join(this.#settings.directory, "programs", AGENT);
    await copyFile(agentBinary() ?? agent, `${program}.new`);
    await rename(`${program}.new`, program);
    return dirname(program);
  }
}

function ifMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== "ENOENT") throw error;
}

/** The snapshot that a sandbox begins with. @throws SandboxError not_found */
async function originOf(
  { datasets, templates }: Opened,
  { snapshot, template }: SandboxSpec,
): Promise<string> {
  if (snapshot === undefined) return templates.get(template).snapshot;
  const origin = (await datasets.snapshots()).get(snapshot);
  if (origin === undefined) throw new SandboxError("not_found", `there is no snapshot '${snapshot}'`);
  return origin;
}

function idOf(name: string): string {
  return name.replace(/^e2b-/, "");
}

function limitsText({ cpuCount, diskMiB, memoryMiB, processes }: FullLimits): string {
  return [cpuCount, memoryMiB, diskMiB, processes].join(":");
}

function limitsOf(text: string | undefined, defaults: FullLimits): FullLimits {
  if (text === undefined) return defaults;
  const [cpuCount, memoryMiB, diskMiB, processes] = text.split(":").map(Number);
  return fullLimits({ cpuCount, memoryMiB, diskMiB, processes }, defaults);
}
