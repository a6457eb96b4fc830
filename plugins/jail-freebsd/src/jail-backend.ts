import { readdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { AgentConnection } from "@coppice/agent";
import { type AddressLeases, SandboxError, messageOf, type Logger } from "@coppice/core";
import {
  type EgressRules,
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
import type { DatasetState, OwnedDataset } from "./zfs/datasets.js";
import type { EnforcedLimit } from "./host/enforced-limits.js";
import { connectSoon } from "./host/host.js";
import type { HostProblem } from "./host/host-problem.js";
import { hostProblems, missingPrograms } from "./host-problems.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import { JexecCommands } from "./jails/jexec-commands.js";
import { AGENT, type Opened, openHost } from "./open-host.js";
import { JailSandbox, type RunningJail } from "./jail-sandbox.js";
import { SandboxLink } from "./sandbox-link.js";
import { type SandboxPaths, sandboxPaths } from "./jails/sandbox-paths.js";
import type { JailTemplate } from "./templates/templates.js";

/** A jail that is to be made around a dataset. */
interface JailPlan {
  readonly spec: SandboxSpec;
  readonly template: JailTemplate;
  readonly paths: SandboxPaths;
  readonly limits: FullLimits;
  readonly egress: EgressRules;
  readonly link: SandboxLink | undefined;
}

export interface JailBackendOptions {
  readonly settings: JailSettings;
  /** Keep which sandbox has which address, for this server and the next one. */
  readonly leases: AddressLeases;
  readonly log: Logger;
}

const MEBIBYTE = 2 ** 20;
const AGENT_TIMEOUT_MS = 10_000;
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

  get offline(): boolean {
    return this.#settings.network.kind === "none";
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
    const { datasets, networks, templates } = opened;
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
      const run = await this.#run(opened, { spec, template, paths, limits, egress, link }, signal);
      return this.#hold(opened, { id: spec.id, paths, limits, jail: run });
    } catch (error) {
      await this.#giveUp(opened, spec.id);
      throw error;
    }
  }

  /** Makes a jail around a dataset in which nothing runs. What there is of it when it rejects is left. */
  async #run(
    opened: Opened,
    { egress, limits, link, paths, spec, template }: JailPlan,
    signal: AbortSignal,
  ): Promise<RunningJail> {
    const { datasets, jails, rules } = opened;
    const { agentInside, devfsRuleset, procfs, sysvipc } = this.#settings;
    signal.throwIfAborted();
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
    const jail = await this.#connect(opened, { paths, user: template.user, link }, signal);
    const durationMs = Number((performance.now() - startedAtMs).toFixed(2));
    this.#log.debug({ sandbox: spec.id, durationMs }, "jexec, until the agent answers");
    await datasets.set(paths.name, "state", "running");
    signal.throwIfAborted();
    return jail;
  }

  /** Lets a stopped sandbox begin anew with its dataset. When that fails, it is stopped still. */
  async #start(opened: Opened, spec: SandboxSpec, signal: AbortSignal) {
    const { datasets, networks, templates } = opened;
    const { id } = spec;
    const paths = sandboxPaths(this.#settings.directory, id);
    const limits = fullLimits(spec.limits, this.#settings.limits);
    const egress = spec.egress ?? egressRulesOf({ ...spec, egress: undefined });
    // A stop, or an earlier start, may have failed half-way.
    await this.#end(opened, id);
    try {
      signal.throwIfAborted();
      const link = networks && (await SandboxLink.find({ id, name: paths.name, networks, datasets }, false));
      await link?.reserve(egress);
      await datasets.mount(paths.name);
      await datasets.limit(paths.name, limits.diskMiB);
      await datasets.set(paths.name, "limits", limitsText(limits));
      const template = templates.get(spec.template);
      return {
        jail: await this.#run(opened, { spec, template, paths, limits, egress, link }, signal),
        limits,
      };
    } catch (error) {
      await datasets.set(paths.name, "state", "stopped");
      await this.#end(opened, id);
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
    const stopped = owned.filter(({ state }) => state === "stopped");
    const found = await Promise.all(stopped.map((dataset) => this.#findStopped(opened, dataset)));
    await Promise.all([...(await this.#abandoned(opened))].map((id) => this.#clear(opened, id)));
    await opened.networks?.removeOthers();
    await opened.datasets.collect();
    this.#isRecovered = true;
    return [...adopted.filter((sandbox) => sandbox !== undefined), ...found];
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
    { helpers }: Opened,
    {
      link,
      paths,
      user,
    }: { readonly paths: SandboxPaths; readonly user: string; readonly link: SandboxLink | undefined },
    signal: AbortSignal,
  ): Promise<RunningJail> {
    const soon = AbortSignal.any([signal, AbortSignal.timeout(AGENT_TIMEOUT_MS)]);
    const { commands, writeInPlaceLimit } = this.#settings;
    const use = { user, signal: soon };
    const options = { defaultUser: user, writeInPlaceLimit };
    const [agent, helper] = await Promise.all([
      connectSoon(paths.socket, soon).then((socket) => AgentConnection.open(socket, options)),
      commands === "jexec" ? helpers.open(paths, use) : helpers.find(paths, use),
    ]);
    return { agent, helper: helper && new JexecCommands(helper), link };
  }

  /** @param sandbox without a jail: it is stopped. */
  #hold(
    opened: Opened,
    {
      id,
      jail,
      limits,
      paths,
    }: {
      readonly id: string;
      readonly paths: SandboxPaths;
      readonly limits: FullLimits;
      readonly jail: RunningJail | undefined;
    },
  ): JailSandbox {
    const made = new JailSandbox({
      id,
      name: paths.name,
      limits,
      jail,
      hasNetworks: opened.networks !== undefined,
      commands: this.#settings.commands,
      datasets: opened.datasets,
      jails: opened.jails,
      usage: opened.usage,
      onResize: opened.rules && ((limits, before) => this.#resize(opened, { paths, limits, before })),
      onStop: (agent) => this.#end(opened, id, agent),
      onStart: (spec, signal) => this.#start(opened, spec, signal),
      onDestroy: async (agent) => {
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
      const jail = await this.#connect(opened, { paths, user, link }, AbortSignal.timeout(AGENT_TIMEOUT_MS));
      return this.#hold(opened, { id, paths, limits, jail });
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "a sandbox does not answer and is removed");
      return undefined;
    }
  }

  /** Takes over a stopped sandbox of an earlier server. Nothing of it is lost where its jail cannot be ended now. */
  async #findStopped(opened: Opened, { name, properties }: OwnedDataset): Promise<JailSandbox> {
    const id = idOf(name);
    const limits = limitsOf(properties.get("limits"), this.#settings.limits);
    const paths = sandboxPaths(this.#settings.directory, id);
    const found = this.#hold(opened, { id, paths, limits, jail: undefined });
    try {
      await this.#end(opened, id);
    } catch (error) {
      this.#log.warn(
        { sandbox: id, err: error },
        "a stopped sandbox keeps its jail until it is started or removed",
      );
    }
    return found;
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
    const { datasets } = opened;
    const paths = sandboxPaths(this.#settings.directory, id);
    await this.#end(opened, id, agent);
    await datasets.destroy(paths.name);
    await rmdir(paths.root).catch(ifMissing);
    await this.#giveBack(opened, id);
    await datasets.collect();
  }

  /** Ends all of a sandbox but its dataset and its lease, as `#clear` does. */
  async #end(
    { helpers, jails, networks, rules }: Opened,
    id: string,
    agent?: AgentConnection,
  ): Promise<void> {
    const paths = sandboxPaths(this.#settings.directory, id);
    await jails.remove(paths);
    // Its end is what the operations that are under way are told of.
    await agent?.closed;
    await helpers.remove(paths);
    const lease = await networks?.addresses.find(id);
    if (lease !== undefined) await networks?.disconnect(lease);
    await rules?.remove(paths.name);
    await rm(paths.socket, { force: true });
  }

  #open(): Promise<Opened> {
    this.#opening ??= openHost({
      settings: this.#settings,
      leases: this.#leases,
      log: this.#log,
      names: () => [...this.#alive.values()].map(({ name }) => name),
    }).catch((error: unknown) => {
      this.#opening = undefined;
      throw error;
    });
    return this.#opening;
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
