import { chmod, copyFile, mkdir, readdir, rename, rm, rmdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { AgentConnection, agentBinary } from "@coppice/agent";
import { type AddressLeases, SandboxError, messageOf, type Logger, type NetworkLeases } from "@coppice/core";
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
import { AddressPool } from "./address-pool.js";
import { AliasNetworks } from "./alias-networks.js";
import { BuiltTemplates } from "./built-templates.js";
import { type DatasetState, type OwnedDataset, Datasets } from "./datasets.js";
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
import { SandboxLink } from "./sandbox-link.js";
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
  /** Those of this installation's sandboxes. */
  readonly leases: NetworkLeases;
  /** Undefined where sandboxes have lo0 alone. */
  readonly networks: SandboxNetworks | undefined;
  /** Undefined where the kernel counts nothing. */
  readonly rules: ResourceRules | undefined;
  readonly usage: UsageSampler;
  readonly limits: readonly EnforcedLimit[];
  /** Directory on the host with the agent's program alone, which is mounted in every jail. */
  readonly programs: string;
}

export interface JailBackendOptions {
  readonly settings: JailSettings;
  /** Keep which sandbox has which address, for this server and the next one. */
  readonly leases: AddressLeases;
  readonly log: Logger;
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
  readonly #leases: AddressLeases;
  readonly #log: Logger;
  readonly #alive = new Map<string, JailSandbox>();
  /** Ids of those that are being made, or cleared away because that failed. */
  readonly #beginning = new Set<string>();
  #isRecovered = false;
  #opening: Promise<Opened> | undefined;

  constructor({ leases, log, settings }: JailBackendOptions) {
    this.#settings = settings;
    this.#leases = leases;
    this.#log = log;
  }

  get defaultLimits(): FullLimits {
    return this.#settings.limits;
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
    const link = networks && new SandboxLink({ id: spec.id, name: paths.name, networks, datasets });
    await link?.reserve(egress);
    await datasets
      .clone(paths.name, {
        origin,
        mountPoint: paths.root,
        refquotaMiB: limits.diskMiB,
        properties: { id: spec.id, template: spec.template, limits: limitsText(limits) },
      })
      .catch(async (error: unknown) => {
        // One that was killed, or could not mount what it had made, leaves the dataset.
        const isMade = !(error instanceof SandboxError) || UNKNOWN_OUTCOME.has(error.code);
        if (isMade) await this.#giveUp(opened, spec.id);
        else await this.#giveBack(opened, spec.id);
        throw error;
      });
    try {
      signal.throwIfAborted();
      const { agentInside, devfsRuleset, procfs, sysvipc } = this.#settings;
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
        sysvipc,
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
      await this.#giveUp(opened, spec.id);
      throw error;
    }
  }

  async recover(): Promise<readonly Sandbox[]> {
    const opened = await this.#open();
    const running = await opened.jails.names();
    const owned = (await opened.datasets.owned()).filter(({ name }) => !this.#alive.has(idOf(name)));
    const living = owned.filter(({ name, state }) => isWhole(state) && running.has(name));
    await this.#reclaimAddresses(opened, new Set(living.map(({ name }) => name)));
    const adopted = await Promise.all(living.map((dataset) => this.#adopt(opened, dataset)));
    await Promise.all([...(await this.#abandoned(opened))].map((id) => this.#clear(opened, id)));
    await opened.networks?.removeOthers();
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
    for (const id of await this.#abandoned(opened)) {
      this.#log.warn({ sandbox: id }, "a sandbox that nobody has is cleared away");
      await this.#giveUp(opened, id);
    }
    await opened.networks?.removeOthers();
    await opened.datasets.collect();
  }

  /** Clears away a sandbox that nobody has. Where that fails, the next sweep tries again. */
  async #giveUp(opened: Opened, id: string): Promise<void> {
    try {
      await this.#clear(opened, id);
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "a sandbox that nobody has was not cleared away");
    }
  }

  /**
   * Ends the lease of a sandbox of which there is nothing else. A ledger that cannot be written keeps none from being
   * destroyed: the next sweep finds what is still leased.
   */
  async #giveBack({ leases }: Opened, id: string): Promise<void> {
    try {
      await leases.release(id);
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "the address of a sandbox that nobody has stays leased");
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
        await this.#clear(opened, id, agent);
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

  /** Takes over a sandbox of an earlier server, whose jail is there; undefined when it does not answer. */
  async #adopt(opened: Opened, { name, state, properties }: OwnedDataset): Promise<JailSandbox | undefined> {
    const { datasets, jails, networks, templates } = opened;
    const id = idOf(name);
    const paths = sandboxPaths(this.#settings.directory, id);
    try {
      // A server may have ended while it was paused; the agent answers only when it can run.
      await jails.resume(name);
      const limits = limitsOf(properties.get("limits"), this.#settings.limits);
      const { user } = templates.get(properties.get("template") ?? "");
      const link =
        networks && (await SandboxLink.find({ id, name, networks, datasets }, state === "running"));
      return await this.#connect(
        opened,
        { id, paths, user, limits, link },
        AbortSignal.timeout(AGENT_TIMEOUT_MS),
      );
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "a sandbox does not answer and is removed");
      return undefined;
    }
  }

  /** Leases again what jails have and their leases do not say: the ledger was lost, or is an older copy. */
  async #reclaimAddresses({ networks }: Opened, jails: ReadonlySet<string>): Promise<void> {
    if (networks === undefined) return;
    for (const [jail, address] of await networks.found()) {
      if (jails.has(jail)) await networks.addresses.reclaim(idOf(jail), address);
    }
  }

  /**
   * The ids of sandboxes that nobody has and of which there is something: a dataset, a file, a root, a socket or a
   * lease. The rest of one goes before those, or is found by its lease.
   */
  async #abandoned({ datasets, leases }: Opened): Promise<ReadonlySet<string>> {
    const { directory } = this.#settings;
    // One that ends, or begins, while this looks around was never without somebody.
    const held = new Set([...this.#alive.keys(), ...this.#beginning]);
    const present = (await datasets.owned()).filter(({ state }) => state !== "retained");
    const files = await Promise.all(
      ["conf", "roots", "sockets", "helpers"].map((name) => readdir(join(directory, name))),
    );
    const names = [
      ...present.map(({ name }) => name),
      ...files.flat().map((name) => name.split(".")[0] ?? ""),
    ];
    const found = new Set([...names.map(idOf), ...(await leases.all()).map(({ holder }) => holder)]);
    return new Set([...found].filter((id) => !held.has(id) && !this.#isHeld(id)));
  }

  #isHeld(id: string): boolean {
    return this.#alive.has(id) || this.#beginning.has(id);
  }

  /** Removes a sandbox, whatever there is of it: every step is content with nothing. Its lease goes last. */
  async #clear(opened: Opened, id: string, agent?: AgentConnection): Promise<void> {
    const { datasets, helpers, jails, networks, rules } = opened;
    const paths = sandboxPaths(this.#settings.directory, id);
    await jails.remove(paths);
    // Its end is what the operations that are under way are told of.
    await agent?.closed;
    await helpers.remove(paths);
    const lease = await networks?.addresses.find(id);
    if (lease !== undefined) await networks?.disconnect(lease);
    await rules?.remove(paths.name);
    await datasets.destroy(paths.name);
    await rmdir(paths.root).catch(ifMissing);
    await rm(paths.socket, { force: true });
    await this.#giveBack(opened, id);
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
      // It may have been there.
      await chmod(join(directory, name), 0o700);
    }
    const host = new Host({
      programs,
      agent,
      socket: join(directory, "host.sock"),
      timeoutMs: hostCommandTimeout,
      log: this.#log,
    });
    const owner = installationOf(directory);
    const leases = this.#leases.of(`${this.name}-${owner}`);
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
      leases,
      networks: this.#networksOf(host, leases, owner),
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

  #networksOf(host: Host, leases: NetworkLeases, digest: string): SandboxNetworks | undefined {
    const { network: settings } = this.#settings;
    if (settings.kind === "none") return undefined;
    const addresses = new AddressPool({ range: settings.range, leases });
    return settings.kind === "vnet"
      ? new VnetNetworks({ host, settings, addresses, digest })
      : new AliasNetworks({ host, settings, addresses });
  }

  /** Jails that run keep the file that they were started from: it is replaced, never written to. */
  async #keepAgent(agent: string): Promise<string> {
    const program = join(this.#settings.directory, "programs", AGENT);
    await copyFile(agent, `${program}.new`);
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

/** Whether a sandbox was finished, and was not given up. */
function isWhole(state: DatasetState): boolean {
  return state === "running" || state === "connecting";
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
