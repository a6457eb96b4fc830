import { copyFile, mkdir, readdir, rename, rm, rmdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentConnection, agentBinary } from "@coppice/agent";
import { SandboxError, messageOf, type Logger } from "@coppice/core";
import {
  egressRulesOf,
  type FullLimits,
  fullLimits,
  type Limits,
  type Sandbox,
  type SandboxBackend,
  type SandboxSpec,
  type SnapshotId,
  type VolumeId,
  type VolumeSpec,
} from "@coppice/core/backend";
import { AliasNetworks } from "./alias-networks.js";
import { BuiltTemplates } from "./built-templates.js";
import { type OwnedDataset, Datasets } from "./datasets.js";
import { type EnforcedLimit, enforcedLimits } from "./enforced-limits.js";
import { Host, connectSoon } from "./host.js";
import { type HostProblem, hostProblems, missingPrograms } from "./host-problems.js";
import { installationOf } from "./installation.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import { JexecCommands } from "./jexec-commands.js";
import { JexecHelpers } from "./jexec-helpers.js";
import { JailSandbox } from "./jail-sandbox.js";
import { Jails } from "./jails.js";
import { ResourceRules } from "./resource-rules.js";
import type { SandboxNetworks } from "./sandbox-networks.js";
import { ADDRESS, retakeAddress, SandboxLink } from "./sandbox-link.js";
import { type SandboxPaths, sandboxPaths } from "./sandbox-paths.js";
import { TemplateSignatures } from "./template-signatures.js";
import { Templates } from "./templates.js";
import { UsageSampler } from "./usage-sampler.js";
import { VnetNetworks } from "./vnet-networks.js";
import { VolumeDatasets } from "./volume-datasets.js";

/** What there is once the backend was opened. */
interface Opened {
  readonly host: Host;
  readonly datasets: Datasets;
  readonly jails: Jails;
  readonly helpers: JexecHelpers;
  readonly templates: Templates;
  readonly volumes: VolumeDatasets;
  /** Undefined where templates need not be signed. */
  readonly signatures: TemplateSignatures | undefined;
  /** Undefined where sandboxes have lo0 alone. */
  readonly networks: SandboxNetworks | undefined;
  /** Undefined where the kernel counts nothing. */
  readonly rules: ResourceRules | undefined;
  readonly usage: UsageSampler;
  readonly limits: readonly EnforcedLimit[];
  /** Directory on the host with the agent's program alone, which is mounted in every jail. */
  readonly programs: string;
}

const MEBIBYTE = 2 ** 20;
const AGENT = "coppice-agent";
const AGENT_TIMEOUT_MS = 10_000;
/** sun_path of FreeBSD without its NUL, the shortest there is. */
const LONGEST_SOCKET_PATH = 103;
const LONGEST_ID = 64;
/** What a program of the host ends with that may have done its work. */
const UNKNOWN_OUTCOME: ReadonlySet<string> = new Set(["deadline_exceeded", "unavailable"]);

/** Makes sandboxes out of clones of ZFS snapshots and jails. */
export class JailBackend implements SandboxBackend {
  readonly name = "jail-freebsd";
  readonly isolated = true;
  readonly snapshots = {
    list: async () => [...(await (await this.#open()).datasets.snapshots()).keys()],
    remove: async (id: SnapshotId) => (await this.#open()).datasets.removeSnapshot(id),
  };
  readonly volumes = {
    make: async (spec: VolumeSpec) => (await this.#open()).volumes.make(spec),
    list: async () => (await this.#open()).volumes.list(),
    remove: async (id: VolumeId) => (await this.#open()).volumes.remove(id),
    usage: async (id: VolumeId) => (await this.#open()).volumes.usage(id),
  };
  readonly #settings: JailSettings;
  readonly #log: Logger;
  readonly #alive = new Map<string, JailSandbox>();
  /** Ids of those that are being made, or cleared away because that failed. */
  readonly #beginning = new Set<string>();
  /** Those that were given up and are not cleared away yet, by their ids; each has its address until then. */
  readonly #givenUp = new Map<string, SandboxLink | undefined>();
  #isRecovered = false;
  #opening: Promise<Opened> | undefined;

  constructor(settings: JailSettings, log: Logger) {
    this.#settings = settings;
    this.#log = log;
  }

  async check(): Promise<void> {
    const problems = await this.problems();
    if (problems.length === 0) return;
    const text = problems.map(({ message }) => message).join("; ");
    throw new SandboxError("failed_precondition", `jail-freebsd cannot use this host: ${text}`);
  }

  /** All that keeps this host from running it. */
  async problems(): Promise<readonly HostProblem[]> {
    const missing = await missingPrograms(this.#settings);
    if (missing.length > 0) return missing;
    try {
      return await hostProblems({ settings: this.#settings, ...(await this.#open()) });
    } catch (error) {
      return [{ message: messageOf(error), fix: "see docs/freebsd.md" }];
    }
  }

  /** What sysctl(8) says of a name; undefined for one that it does not know. */
  async sysctl(name: string): Promise<string | undefined> {
    const { code, stdout } = await (await this.#open()).host.try("sysctl", ["-n", name]);
    return code === 0 ? stdout.trim() : undefined;
  }

  /** The snapshot that sandboxes of a template begin with. @throws SandboxError not_found */
  async templateSnapshot(template: string): Promise<string> {
    const { datasets, templates } = await this.#open();
    const snapshot = await templates.snapshotOf(template);
    if (await datasets.hasSnapshot(snapshot)) return snapshot;
    throw new SandboxError("not_found", `there is no snapshot ${snapshot} for template ${template}`);
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    if (this.#isHeld(spec.id)) throw new SandboxError("already_exists", `sandbox ${spec.id} already exists`);
    this.#beginning.add(spec.id);
    try {
      return await this.#provision(spec, signal);
    } finally {
      this.#beginning.delete(spec.id);
    }
  }

  async #provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted();
    const opened = await this.#open();
    const { datasets, jails, networks, rules, templates } = opened;
    const paths = sandboxPaths(this.#settings.directory, spec.id);
    const limits = fullLimits(spec.limits, this.#settings.limits);
    const template = templates.get(spec.template);
    const origin = await originOf(opened, spec);
    const egress = spec.egress ?? egressRulesOf({ ...spec, egress: undefined });
    const link = networks && new SandboxLink({ name: paths.name, networks, datasets });
    const leased = link?.reserve(egress);
    await datasets
      .clone(paths.name, {
        origin,
        mountPoint: paths.root,
        refquotaMiB: limits.diskMiB,
        properties: { id: spec.id, template: spec.template, limits: limitsText(limits), ...leased },
      })
      .catch(async (error: unknown) => {
        // One that was killed, or could not mount what it had made, leaves the dataset.
        const isMade = !(error instanceof SandboxError) || UNKNOWN_OUTCOME.has(error.code);
        if (isMade) await this.#giveUp(opened, paths, link);
        else link?.release();
        throw error;
      });
    try {
      signal.throwIfAborted();
      const { agentInside, devfsRuleset, procfs } = this.#settings;
      const volumes = await opened.volumes.mountsIn(paths.root, spec.mounts ?? []);
      // Before there is a jail: nothing ever runs in it without.
      await rules?.set(paths.name, limits);
      await link?.prepare(egress);
      signal.throwIfAborted();
      await jails.create(paths, {
        name: paths.name,
        hostname: spec.id,
        root: paths.root,
        stack: link?.stack ?? { kind: "own" },
        devfsRuleset,
        procfs,
        mounts: [
          ...template.mounts,
          { source: opened.programs, target: agentInside, readOnly: true },
          ...volumes,
        ],
      });
      signal.throwIfAborted();
      await link?.connect();
      signal.throwIfAborted();
      const startedAtMs = performance.now();
      await this.#startAgent(opened, paths);
      const sandbox = await this.#connect(
        opened,
        { id: spec.id, paths, user: template.user, limits, link },
        signal,
      );
      const durationMs = Number((performance.now() - startedAtMs).toFixed(2));
      this.#log.debug({ sandbox: spec.id, durationMs }, "jexec, until the agent answers");
      await datasets.set(paths.name, "state", "running");
      signal.throwIfAborted();
      return sandbox;
    } catch (error) {
      this.#alive.delete(spec.id);
      await this.#giveUp(opened, paths, link);
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
    this.#isRecovered = true;
    return adopted.filter((sandbox) => sandbox !== undefined);
  }

  /**
   * Clears away what is left of sandboxes that nobody has any more: when they ended, something failed. Does nothing
   * before `recover`, for what is there is not known until then.
   */
  async sweep(): Promise<void> {
    if (!this.#isRecovered) return;
    const opened = await this.#open();
    const isLeft = ({ name, state }: OwnedDataset) => state !== "retained" && !this.#isHeld(idOf(name));
    const suspects = new Set((await opened.datasets.owned()).filter(isLeft).map(({ name }) => name));
    // One may have ended meanwhile, and its address may be another's. What is still there now stays there.
    const left =
      suspects.size === 0 ? [] : (await opened.datasets.owned()).filter(({ name }) => suspects.has(name));
    const links = new Map(left.map(({ name, properties }) => [idOf(name), linkOf(opened, name, properties)]));
    for (const [id, link] of new Map([...links, ...this.#givenUp])) {
      if (this.#isHeld(id)) continue;
      this.#log.warn({ sandbox: id }, "a sandbox that nobody has is cleared away");
      await this.#giveUp(opened, sandboxPaths(this.#settings.directory, id), link);
    }
    await this.#removeOthers(opened);
    await opened.datasets.collect();
  }

  /** Clears away a sandbox that nobody has. Where that fails, the next sweep tries again. */
  async #giveUp(opened: Opened, paths: SandboxPaths, link: SandboxLink | undefined): Promise<void> {
    const id = idOf(paths.name);
    this.#givenUp.set(id, link);
    try {
      await this.#clear(opened, paths, { link });
      this.#givenUp.delete(id);
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "a sandbox that nobody has was not cleared away");
    }
  }

  /** By what sandboxes are held to their limits, once a check has succeeded. */
  async enforcedLimits(): Promise<readonly EnforcedLimit[] | undefined> {
    const opened = await this.#opening?.catch(() => undefined);
    return opened?.limits;
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
    await host.serveInside(socket, "jexec", ["-l", "-U", "root", name, program, "listen", "3"]);
  }

  async #connect(
    opened: Opened,
    sandbox: {
      readonly id: string;
      readonly paths: SandboxPaths;
      readonly user: string;
      readonly limits: FullLimits;
      readonly link: SandboxLink | undefined;
    },
    signal: AbortSignal,
  ): Promise<JailSandbox> {
    const { id, paths, user, limits, link } = sandbox;
    const soon = AbortSignal.any([signal, AbortSignal.timeout(AGENT_TIMEOUT_MS)]);
    const { commands, writeInPlaceLimit } = this.#settings;
    const { helpers } = opened;
    const use = { user, signal: soon };
    const options = { defaultUser: user, writeInPlaceLimit };
    const [agent, helper] = await Promise.all([
      connectSoon(paths.socket, soon).then((socket) => AgentConnection.open(socket, options)),
      commands === "jexec" ? helpers.open(paths, use) : helpers.find(paths, use),
    ]);
    const made = new JailSandbox({
      id,
      name: paths.name,
      limits,
      agent,
      helper: helper && new JexecCommands(helper),
      commands,
      datasets: opened.datasets,
      jails: opened.jails,
      onRestrict: link && ((rules) => link.restrict(rules)),
      usage: opened.usage,
      onResize: opened.rules && ((limits, before) => this.#resize(opened, { paths, limits, before })),
      onDestroy: async () => {
        await this.#clear(opened, paths, { agent, link });
        this.#alive.delete(id);
      },
    });
    this.#alive.set(id, made);
    return made;
  }

  async #resize(
    { datasets, rules, usage }: Opened,
    sandbox: { readonly paths: SandboxPaths; readonly limits: Limits; readonly before: FullLimits },
  ): Promise<FullLimits> {
    const { before, paths } = sandbox;
    const wanted = fullLimits(sandbox.limits, this.#settings.limits);
    const { memoryBytes = 0 } = (await usage.of(paths.name)) ?? {};
    if (memoryBytes > wanted.memoryMiB * MEBIBYTE) {
      throw new SandboxError("failed_precondition", "the sandbox uses more memory than that");
    }
    try {
      if (wanted.diskMiB !== before.diskMiB) await datasets.limit(paths.name, wanted.diskMiB);
      await rules?.set(paths.name, wanted);
      await datasets.set(paths.name, "limits", limitsText(wanted));
    } catch (error) {
      await datasets
        .limit(paths.name, before.diskMiB)
        .then(() => rules?.set(paths.name, before))
        .catch((failure: unknown) => {
          this.#log.error(
            { sandbox: paths.name, err: failure },
            "a sandbox is left with limits half changed",
          );
        });
      throw error;
    }
    return wanted;
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
    const link = linkOf(opened, name, properties);
    if (state === "running" && running.has(name)) {
      try {
        // A server may have ended while it was paused; the agent answers only when it can run.
        await opened.jails.resume(name);
        const limits = limitsOf(properties.get("limits"), this.#settings.limits);
        const { user } = opened.templates.get(template);
        return await this.#connect(
          opened,
          { id, paths, user, limits, link },
          AbortSignal.timeout(AGENT_TIMEOUT_MS),
        );
      } catch (error) {
        this.#log.warn({ sandbox: id, err: error }, "a sandbox does not answer and is removed");
      }
    }
    await this.#clear(opened, paths, { link });
    return undefined;
  }

  /** What has a file, a root, a socket or a network here, and no dataset: a server ended between two steps. */
  async #removeOthers(opened: Opened): Promise<void> {
    const present = (await opened.datasets.owned()).filter(({ state }) => state !== "retained");
    const owned = new Set(present.map(({ name }) => idOf(name)));
    const { directory } = this.#settings;
    const found = await Promise.all(
      ["conf", "roots", "sockets", "helpers"].map((name) => readdir(join(directory, name))),
    );
    const ids = new Set(found.flat().map((name) => idOf(name.split(".")[0] ?? "")));
    for (const id of ids) {
      if (!owned.has(id) && !this.#isHeld(id)) await this.#clear(opened, sandboxPaths(directory, id), {});
    }
    await opened.networks?.removeOthers();
  }

  #isHeld(id: string): boolean {
    return this.#alive.has(id) || this.#beginning.has(id);
  }

  /** Removes a sandbox, whatever there is of it: every step is content with nothing. */
  async #clear(
    { datasets, helpers, jails, rules }: Opened,
    paths: SandboxPaths,
    { agent, link }: { readonly agent?: AgentConnection; readonly link?: SandboxLink | undefined },
  ): Promise<void> {
    await jails.remove(paths);
    // Its end is what the operations that are under way are told of.
    await agent?.closed;
    await helpers.remove(paths);
    await link?.remove();
    await rules?.remove(paths.name);
    await datasets.destroy(paths.name);
    await rmdir(paths.root).catch(ifMissing);
    await rm(paths.socket, { force: true });
    link?.release();
    await datasets.collect();
  }

  #open(): Promise<Opened> {
    this.#opening ??= this.#reallyOpen().catch((error: unknown) => {
      this.#opening = undefined;
      throw error;
    });
    return this.#opening;
  }

  async #reallyOpen(): Promise<Opened> {
    const { dataset, directory, hostCommandTimeout, programs, templateSignatures } = this.#settings;
    const agent = this.#settings.agent ?? agentBinary();
    if (agent === undefined)
      throw new Error("the agent has not been built: install a C compiler and run set-up");
    const longest = join(directory, "sockets", "x".repeat(LONGEST_ID));
    if (Buffer.byteLength(longest) > LONGEST_SOCKET_PATH)
      throw new Error(`directory ${directory} is too long`);
    for (const name of ["conf", "roots", "sockets", "helpers", "programs", "volumes"]) {
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
    const owner = installationOf(directory);
    const datasets = new Datasets(host, { parent: dataset, owner });
    const rules = new ResourceRules(host, this.#settings.limits);
    const reason = await rules.reasonAgainst();
    if (reason !== undefined)
      this.#log.warn({ reason }, "sandboxes are held to no limits but those of their disks");
    const held = reason === undefined ? rules : undefined;
    return {
      host,
      datasets,
      jails: await Jails.open(host),
      helpers: new JexecHelpers({
        host,
        program: join(this.#settings.agentInside, AGENT),
        log: this.#log,
      }),
      templates: new Templates(this.#settings.templates, {
        parent: dataset,
        built: new BuiltTemplates(host, { parent: dataset, builder: owner }),
      }),
      signatures: templateSignatures && new TemplateSignatures(host, templateSignatures),
      networks: await this.#openNetworks(host, datasets, owner),
      rules: held,
      volumes: new VolumeDatasets({
        host,
        datasets,
        directory: join(directory, "volumes"),
        owner: this.#settings.volumeOwner,
      }),
      usage: new UsageSampler({
        datasets,
        rules: held,
        names: () => [...this.#alive.values()].map(({ name }) => name),
        maximumAgeMs: this.#settings.usageMaximumAge,
      }),
      limits: enforcedLimits(reason),
      programs: await this.#keepAgent(agent),
    };
  }

  async #openNetworks(host: Host, datasets: Datasets, owner: string): Promise<SandboxNetworks | undefined> {
    const { network } = this.#settings;
    if (network.kind === "none") return undefined;
    const networks =
      network.kind === "vnet" ? new VnetNetworks(host, network, owner) : new AliasNetworks(host, network);
    for (const { state, properties } of await datasets.owned()) {
      if (state !== "retained") retakeAddress(networks, properties.get(ADDRESS) ?? "");
    }
    return networks;
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

/** The snapshot that a sandbox begins with. @throws SandboxError not_found, failed_precondition */
async function originOf(
  { datasets, signatures, templates }: Opened,
  { snapshot, template }: SandboxSpec,
): Promise<string> {
  if (snapshot === undefined) {
    const origin = await templates.snapshotOf(template);
    await signatures?.verify(template, origin);
    return origin;
  }
  const origin = (await datasets.snapshots()).get(snapshot);
  if (origin === undefined) throw new SandboxError("not_found", `there is no snapshot '${snapshot}'`);
  return origin;
}

/** Of a sandbox that is there already; undefined where none is connected. */
function linkOf(
  { datasets, networks }: Opened,
  name: string,
  properties: OwnedDataset["properties"],
): SandboxLink | undefined {
  return networks && new SandboxLink({ name, networks, datasets, found: properties.get(ADDRESS) });
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
