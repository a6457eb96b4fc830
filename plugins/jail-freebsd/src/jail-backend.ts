import { readdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { AgentConnection } from "@coppice/agent";
import { type Logger, messageOf, SandboxError } from "@coppice/core";
import {
  type AddressLeases,
  type EgressRules,
  egressRulesOf,
  fullLimits,
  type FullLimits,
  ignoring,
  type ImageId,
  type ImageSource,
  type PackSource,
  type Sandbox,
  type SandboxBackend,
  type SandboxImage,
  type SandboxSpec,
  sharedUntilFailure,
  type SnapshotId,
  type VolumeId,
  type VolumeSpec,
} from "@coppice/core/backend";
import type { DatasetState, OwnedDataset } from "./zfs/datasets.js";
import type { EnforcedLimit, HostProblem } from "./host/host-facts.js";
import { connectSoon } from "./host/host.js";
import { hostGaps, hostProblems, missingPrograms } from "./host-problems.js";
import type { JailSettings } from "./jail-freebsd-config.js";
import { JexecCommands } from "./jails/jexec-helpers.js";
import { AGENT, type Opened, openHost } from "./open-host.js";
import { JailSandbox, type RunningJail } from "./jail-sandbox.js";
import { SandboxLink } from "./sandbox-link.js";
import {
  originOf,
  packedOf,
  rootOf,
  type SandboxRoot,
  imageOf,
  imageText,
  limitsOf,
  limitsText,
} from "./sandbox-root.js";
import { type SandboxPaths, sandboxPaths } from "./jails/jails.js";

interface JailPlan {
  readonly spec: SandboxSpec;
  readonly root: SandboxRoot;
  readonly paths: SandboxPaths;
  readonly limits: FullLimits;
  readonly egress: EgressRules;
  readonly link: SandboxLink | undefined;
}

interface JailBackendOptions {
  readonly settings: JailSettings;
  readonly leases: AddressLeases;
  readonly log: Logger;
}

const AGENT_TIMEOUT_MS = 10_000;
/** Errors after which a program may still have had its effect. */
const UNKNOWN_OUTCOME: ReadonlySet<string> = new Set(["deadline_exceeded", "unavailable"]);

/** Runs sandboxes as jails on clones of ZFS snapshots. */
export class JailBackend implements SandboxBackend {
  readonly name = "jail-freebsd";
  readonly isolated = true;
  readonly snapshots = {
    list: async () => [...(await (await this.#open()).datasets.snapshots(true)).keys()],
    remove: async (id: SnapshotId) => {
      const opened = await this.#open();
      await opened.datasets.removeSnapshot(id);
      await this.#collect(opened);
    },
  };
  readonly volumes = {
    make: async (spec: VolumeSpec) => (await this.#open()).volumes.make(spec),
    list: async () => (await this.#open()).volumes.list(),
    remove: async (id: VolumeId) => (await this.#open()).volumes.remove(id),
    usage: async (id: VolumeId) => (await this.#open()).volumes.usage(id),
  };
  readonly images = {
    unpack: async (id: ImageId, source: ImageSource, signal: AbortSignal) =>
      (await this.#open()).images.unpack(id, source, signal),
    list: async () => (await this.#open()).images.list(),
    remove: async (id: ImageId) => {
      const opened = await this.#open();
      await opened.images.remove(id);
      await this.#collect(opened);
    },
    usage: async (id: ImageId) => (await this.#open()).images.usage(id),
    pack: (source: PackSource, signal: AbortSignal) => this.#pack(source, signal),
  };
  readonly #settings: JailSettings;
  readonly #leases: AddressLeases;
  readonly #log: Logger;
  readonly #alive = new Map<string, JailSandbox>();
  /** Ids of sandboxes that are being created, or removed after a failed creation. */
  readonly #beginning = new Set<string>();
  #isRecovered = false;
  /** As the last sweep, or the last start of a sandbox after it, has found them. */
  #gaps: readonly HostProblem[] = [];
  readonly #open = sharedUntilFailure(() => this.#openHost(false));
  /** For questions about the host alone. */
  readonly #openToLook = sharedUntilFailure(() => this.#openHost(true));

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

  async *#pack(source: PackSource, signal: AbortSignal): AsyncIterable<Uint8Array> {
    signal.throwIfAborted();
    const opened = await this.#open();
    const origin = await packedOf(opened, source);
    try {
      yield* opened.images.pack(origin, signal);
    } finally {
      // It may have been removed meanwhile.
      await this.#collect(opened);
    }
  }

  async check(): Promise<void> {
    const problems = (await this.problems()).filter(({ severity }) => severity !== "warn");
    if (problems.length > 0) throw unusable(problems);
  }

  /** Every problem that keeps this host from running the backend, and with `warn` those that need not. */
  async problems(): Promise<readonly HostProblem[]> {
    const missing = await missingPrograms(this.#settings);
    if (missing.length > 0) return missing;
    try {
      return await hostProblems(this.#settings, await this.look());
    } catch (error) {
      return [{ message: messageOf(error), fix: "see docs/freebsd.md" }];
    }
  }

  /** For `coppice doctor` beside a server, and for a start that may fail: neither may end what runs. */
  look(): Promise<Opened> {
    return this.#open.current() === undefined ? this.#openToLook() : this.#open();
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    if (this.#isHeld(spec.id)) throw new SandboxError("sandbox_exists", `sandbox ${spec.id} already exists`);
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
    const { datasets, networks } = opened;
    const paths = sandboxPaths(this.#settings.directory, spec.id);
    const limits = fullLimits(spec.limits, this.#settings.limits);
    const root = rootOf(opened, spec.template, spec.image);
    const origin = await originOf(opened, spec);
    const egress = spec.egress ?? egressRulesOf({ ...spec, egress: undefined });
    const link = networks && new SandboxLink({ id: spec.id, name: paths.name, networks, datasets });
    await link?.reserve(egress);
    await datasets
      .clone(paths.name, {
        origin,
        mountPoint: paths.root,
        refquotaMiB: limits.diskMiB,
        properties: {
          id: spec.id,
          template: spec.template,
          limits: limitsText(limits),
          ...(spec.image !== undefined && { image: imageText(spec.image) }),
        },
      })
      .catch(async (error: unknown) => {
        // A command that was killed, or that failed to mount the clone, leaves the dataset.
        const isMade = !(error instanceof SandboxError) || UNKNOWN_OUTCOME.has(error.code);
        if (isMade) await this.#removeAbandoned(opened, spec.id);
        else await this.#releaseAddress(opened, spec.id);
        throw error;
      });
    try {
      const run = await this.#run(opened, { spec, root, paths, limits, egress, link }, signal);
      return this.#hold(opened, { id: spec.id, paths, limits, image: spec.image, jail: run });
    } catch (error) {
      await this.#removeAbandoned(opened, spec.id);
      throw error;
    }
  }

  /** Creates a jail on a dataset. Leaves partial results when it rejects. */
  async #run(
    opened: Opened,
    { egress, limits, link, paths, root, spec }: JailPlan,
    signal: AbortSignal,
  ): Promise<RunningJail> {
    const { datasets, jails, rules } = opened;
    const { agentInside, devfsRuleset, procfs, sysvipc } = this.#settings;
    signal.throwIfAborted();
    if (this.#gaps.length > 0) await this.#findGaps(opened);
    if (this.#gaps.length > 0) throw unusable(this.#gaps);
    const volumes = await opened.volumes.mountsIn(paths.root, spec.mounts ?? []);
    // Before the jail exists: no process in it ever runs without limits.
    await rules?.set(paths.name, limits);
    await link?.prepare(egress);
    signal.throwIfAborted();
    await jails.create(paths, {
      name: paths.name,
      hostname: spec.id,
      root: paths.root,
      devfsRuleset,
      procfs,
      sysvipc,
      mounts: [...root.mounts, { source: opened.programs, target: agentInside, readOnly: true }, ...volumes],
    });
    signal.throwIfAborted();
    await link?.connect();
    signal.throwIfAborted();
    const startedAtMs = performance.now();
    await this.#startAgent(opened, paths);
    const jail = await this.#connect(opened, { paths, user: root.user, link }, signal);
    const durationMs = Number((performance.now() - startedAtMs).toFixed(2));
    this.#log.debug({ sandbox: spec.id, durationMs }, "jexec, until the agent answers");
    await datasets.set(paths.name, "state", "running");
    signal.throwIfAborted();
    return jail;
  }

  /** Starts a stopped sandbox on its dataset. It stays stopped when this fails. */
  async #start(opened: Opened, spec: SandboxSpec, signal: AbortSignal) {
    const { datasets, networks } = opened;
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
      const root = rootOf(opened, spec.template, spec.image);
      return {
        jail: await this.#run(opened, { spec, root, paths, limits, egress, link }, signal),
        limits,
      };
    } catch (error) {
      await datasets.set(paths.name, "state", "stopped");
      await this.#end(opened, id);
      throw error;
    }
  }

  async recover(): Promise<readonly Sandbox[]> {
    await this.#endLook();
    const opened = await this.#open();
    const running = await opened.jails.names();
    const all = await opened.datasets.owned("e2b-", true);
    const owned = all.filter(({ name }) => !this.#alive.has(idOf(name)));
    const living = owned.filter(({ name, state }) => isWhole(state) && running.has(name));
    await this.#reclaimAddresses(opened, new Set(living.map(({ name }) => name)));
    const adopted = await Promise.all(living.map((dataset) => this.#adopt(opened, dataset)));
    const stopped = owned.filter(({ state }) => state === "stopped");
    const found = await Promise.all(stopped.map((dataset) => this.#findStopped(opened, dataset)));
    this.#isRecovered = true;
    await this.sweep().catch((error: unknown) => {
      this.#log.warn(
        { err: error },
        "remains of earlier sandboxes were not removed; the next sweep tries again",
      );
    });
    return [...adopted.filter((sandbox) => sandbox !== undefined), ...found];
  }

  /**
   * Removes the remains of sandboxes whose removal failed. Does nothing before `recover`, which finds the sandboxes
   * that still exist.
   */
  async sweep(): Promise<void> {
    if (!this.#isRecovered) return;
    const opened = await this.#open();
    await this.#findGaps(opened);
    const remove = async (id: string) => {
      this.#log.warn({ sandbox: id }, "abandoned sandbox; removing it");
      await this.#removeAbandoned(opened, id);
    };
    await Promise.all([...(await this.#abandoned(opened))].map(remove));
    await opened.networks?.removeOthers();
    await opened.datasets.collect();
  }

  /** Looks for what the operator took away while the server runs: the ruleset of devfs, or the filter of pf. */
  async #findGaps(opened: Opened): Promise<void> {
    this.#gaps = await hostGaps(opened, this.#settings).catch((error: unknown) => [
      { message: messageOf(error), fix: "see docs/freebsd.md" },
    ]);
    for (const { fix, message } of this.#gaps)
      this.#log.error({ reason: message, fix }, "sandboxes are not kept from the host; none is started");
  }

  /** Fails while no sandbox is started because the host would not be kept from it. */
  health(): void {
    if (this.#gaps.length > 0) throw unusable(this.#gaps);
  }

  /** Removes an abandoned sandbox. The next sweep tries again when this fails. */
  async #removeAbandoned(opened: Opened, id: string): Promise<void> {
    try {
      await this.#clear(opened, id);
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "abandoned sandbox was not removed");
    }
  }

  /**
   * Releases the lease of a sandbox that is otherwise removed. A failure to write the ledger does not fail the removal:
   * the next sweep finds the lease.
   */
  async #releaseAddress({ leases }: Opened, id: string): Promise<void> {
    try {
      await leases.release(id);
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "address of a removed sandbox stays leased");
    }
  }

  async enforcedLimits(): Promise<readonly EnforcedLimit[] | undefined> {
    const opened = await (this.#open.current() ?? this.#openToLook.current());
    return opened?.limits;
  }

  async close(): Promise<void> {
    await this.#endLook();
    const opened = await this.#open.current();
    // The agent of an earlier server has its sandboxes, which are not known before they are recovered.
    const isEmpty = this.#alive.size === 0 && (this.#isRecovered || opened?.host.isTakenOver === false);
    await Promise.all([...this.#alive.values()].map((sandbox) => sandbox.detach()));
    this.#alive.clear();
    await opened?.host.close({ isEmpty });
    opened?.lock?.close();
    this.#open.forget();
  }

  async #startAgent({ host }: Opened, { name, socket }: SandboxPaths): Promise<void> {
    const program = join(this.#settings.agentInside, AGENT);
    await host.serveInside(socket, "jexec", [name, program, "listen", "3"]);
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
    const use = { user, signal: soon };
    const options = { defaultUser: user };
    const [agent, helper] = await Promise.all([
      connectSoon(paths.socket, soon).then((socket) => AgentConnection.open(socket, options)),
      helpers.open(paths, use),
    ]);
    return { agent, helper: new JexecCommands(helper), link };
  }

  /** @param sandbox stopped when it has no jail. */
  #hold(
    opened: Opened,
    {
      id,
      image,
      jail,
      limits,
      paths,
    }: {
      readonly id: string;
      readonly paths: SandboxPaths;
      readonly limits: FullLimits;
      readonly image: SandboxImage | undefined;
      readonly jail: RunningJail | undefined;
    },
  ): JailSandbox {
    const made = new JailSandbox({
      ...opened,
      id,
      name: paths.name,
      limits,
      limitsOf: (wanted) => fullLimits(wanted, this.#settings.limits),
      log: this.#log,
      workdir: image?.workdir,
      jail,
      onStop: (agent) => this.#end(opened, id, agent),
      onCommit: image && ((made) => opened.images.commit(made, paths)),
      onStart: (spec, signal) => this.#start(opened, spec, signal),
      onDestroy: async (agent) => {
        await this.#clear(opened, id, agent);
        this.#alive.delete(id);
      },
    });
    this.#alive.set(id, made);
    return made;
  }

  /** Adopts a running sandbox of an earlier server; undefined when its agent does not answer. */
  async #adopt(
    opened: Opened,
    { image: storedImage, limits: stored, name, state, template }: OwnedDataset,
  ): Promise<JailSandbox | undefined> {
    const { datasets, jails, networks } = opened;
    const id = idOf(name);
    const paths = sandboxPaths(this.#settings.directory, id);
    try {
      // The server may have ended while the sandbox was paused; the agent of a paused jail cannot answer.
      await jails.resume(name);
      const limits = limitsOf(stored, this.#settings.limits);
      const image = storedImage === undefined ? undefined : imageOf(storedImage);
      const { user } = rootOf(opened, template ?? "", image);
      const link =
        networks && (await SandboxLink.find({ id, name, networks, datasets }, state === "running"));
      const jail = await this.#connect(opened, { paths, user, link }, AbortSignal.timeout(AGENT_TIMEOUT_MS));
      return this.#hold(opened, { id, paths, limits, image, jail });
    } catch (error) {
      this.#log.warn({ sandbox: id, err: error }, "sandbox does not answer; removing it");
      return undefined;
    }
  }

  /** Adopts a stopped sandbox of an earlier server. It is kept even if its jail cannot be ended now. */
  async #findStopped(opened: Opened, dataset: OwnedDataset): Promise<JailSandbox> {
    const id = idOf(dataset.name);
    const limits = limitsOf(dataset.limits, this.#settings.limits);
    const image = dataset.image === undefined ? undefined : imageOf(dataset.image);
    const paths = sandboxPaths(this.#settings.directory, id);
    const found = this.#hold(opened, { id, paths, limits, image, jail: undefined });
    try {
      await this.#end(opened, id);
    } catch (error) {
      this.#log.warn(
        { sandbox: id, err: error },
        "jail of a stopped sandbox could not be ended; the next start or removal ends it",
      );
    }
    return found;
  }

  /** Restores leases that jails use but the ledger lacks, because it was lost or is an older copy. */
  async #reclaimAddresses({ networks }: Opened, jails: ReadonlySet<string>): Promise<void> {
    if (networks === undefined) return;
    for (const [jail, address] of await networks.found()) {
      if (jails.has(jail)) await networks.addresses.reclaim(idOf(jail), address);
    }
  }

  /**
   * Ids of abandoned sandboxes that left a dataset, a file, a root, a socket or a lease. All other parts are removed
   * before these, or found by the lease.
   */
  async #abandoned({ datasets, leases }: Opened): Promise<ReadonlySet<string>> {
    const { directory } = this.#settings;
    // A sandbox that starts or ends during the search counts as held.
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

  /** Removes every part of a sandbox; missing parts are skipped. The lease goes last. */
  async #clear(opened: Opened, id: string, agent?: AgentConnection): Promise<void> {
    const { datasets } = opened;
    const paths = sandboxPaths(this.#settings.directory, id);
    await this.#end(opened, id, agent);
    await datasets.destroy(paths.name);
    await rmdir(paths.root).catch(ignoring("ENOENT"));
    await this.#releaseAddress(opened, id);
    await this.#collect(opened);
  }

  /** A dataset that cannot be destroyed, as during a `zfs send`, fails no removal of others: the next sweep tries again. */
  async #collect({ datasets }: Opened): Promise<void> {
    await datasets.collect().catch((error: unknown) => {
      this.#log.warn({ err: error }, "a dataset or snapshot without clones was not destroyed");
    });
  }

  /** Removes everything but the dataset and the lease. */
  async #end(
    { helpers, jails, networks, rules }: Opened,
    id: string,
    agent?: AgentConnection,
  ): Promise<void> {
    const paths = sandboxPaths(this.#settings.directory, id);
    const lease = await networks?.addresses.find(id);
    if (lease !== undefined) await networks?.unplug(lease);
    await jails.remove(paths);
    // The close of the agent is the error that pending operations get.
    await agent?.closed;
    await helpers.remove(paths);
    if (lease !== undefined) await networks?.disconnect(lease);
    await rules?.remove(paths.name);
    await rm(paths.socket, { force: true });
  }

  async #endLook(): Promise<void> {
    const looked = await this.#openToLook.current();
    this.#openToLook.forget();
    await looked?.host.close({ isEmpty: true });
  }

  #openHost(isPrivate: boolean): Promise<Opened> {
    return openHost({
      settings: this.#settings,
      leases: this.#leases,
      log: this.#log,
      names: () => [...this.#alive.values()].map(({ name }) => name),
      isPrivate,
    });
  }
}

function unusable(problems: readonly HostProblem[]): SandboxError {
  const text = problems.map(({ message }) => message).join("; ");
  return new SandboxError("host_unusable", `jail-freebsd cannot use this host: ${text}`);
}

/** True for a dataset whose creation finished and whose removal did not begin. */
function isWhole(state: DatasetState): boolean {
  return state === "running" || state === "connecting";
}

function idOf(name: string): string {
  return name.replace(/^e2b-/, "");
}
