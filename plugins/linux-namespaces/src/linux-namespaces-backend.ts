import { mkdir, readdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { AgentConnection, agentBinary, ProcessDescriptors } from "@coppice/agent";
import { SandboxError, messageOf, type Logger, MEBIBYTE } from "@coppice/core";
import {
  type EgressRules,
  egressRulesOf,
  type FullLimits,
  fullLimits,
  type ImageId,
  type ImageSource,
  type PackSource,
  type Sandbox,
  type SandboxBackend,
  type SandboxSpec,
  sharedUntilFailure,
  type SnapshotId,
  type VolumeId,
  type VolumeSpec,
} from "@coppice/core/backend";
import { canAccess } from "./launcher/host-programs.js";
import {
  connectAgent,
  type PreparedTemplate,
  type SandboxFacts,
  type SandboxPaths,
  isAlive,
  readFacts,
  readInit,
  sandboxPaths,
  writeFacts,
} from "./launcher/sandbox-record.js";
import { ControlGroup } from "./limits/control-groups.js";
import type { FoundOnHost } from "./diagnose-host.js";
import { DiskWatch, VolumeWatch } from "./limits/disk-watch.js";
import { areClosed, checkEgressRules } from "./network/egress.js";
import {
  type LaunchedSandbox,
  ROOT_LAYER,
  launchInstructions,
  overlayLayer,
  workDirectories,
  type MountedVolume,
} from "./launcher/launch-instructions.js";
import { type RestartedSandbox, NamespaceSandbox } from "./namespace-sandbox.js";
import type { LinuxNamespacesSettings } from "./linux-namespaces-config.js";
import type { Chain } from "./storage/layer-store.js";
import { templateSettings, wrongDirectories } from "./templates/templates.js";
import { findUplinkProgram } from "./network/uplink.js";
import { type Opened, closeEgress, needsUplink, openHost } from "./open-host.js";
import { REASONS } from "./reasons.js";

interface Remains extends Pick<SandboxFacts, "firstId" | "network" | "project"> {
  readonly paths: SandboxPaths;
  readonly group: ControlGroup | undefined;
}

interface SandboxLayers {
  readonly template: PreparedTemplate;
  readonly images: Chain | undefined;
  readonly chain: Chain;
}

/** A launched sandbox, or a stopped one, which has no agent. */
interface HeldSandbox {
  readonly paths: SandboxPaths;
  readonly facts: SandboxFacts;
  readonly group: ControlGroup;
  readonly agent: AgentConnection | undefined;
  readonly isNew: boolean;
}

const ADOPTION_TIMEOUT_MS = 5_000;

/** Runs sandboxes in namespaces with an overlay file system, control groups, and an agent as first process. */
export class LinuxNamespacesBackend implements SandboxBackend {
  readonly name = "linux-namespaces";
  readonly isolated = true;
  readonly snapshots = {
    list: async () => (await this.#open()).snapshots.list(),
    remove: async (id: SnapshotId) => {
      const { images, snapshots } = await this.#open();
      await snapshots.remove(id);
      await images.collect();
    },
  };
  readonly volumes = {
    make: async (spec: VolumeSpec) => (await this.#open()).volumes.make(spec),
    list: async () => (await this.#open()).volumes.list(),
    remove: async (id: VolumeId) => (await this.#open()).volumes.remove(id),
    usage: async (id: VolumeId) => (await this.#open()).volumes.usage(id),
  };
  readonly #images = {
    unpack: async (id: ImageId, source: ImageSource, signal: AbortSignal) =>
      (await this.#open()).images.unpack(id, source, signal),
    list: async () => (await this.#open()).images.list(),
    remove: async (id: ImageId) => (await this.#open()).images.remove(id),
    usage: async (id: ImageId) => (await this.#open()).images.usage(id),
    pack: (source: PackSource, signal: AbortSignal) => this.#pack(source, signal),
  };
  readonly #settings: LinuxNamespacesSettings;
  readonly #log: Logger;
  readonly #directory: string;
  readonly #alive = new Map<string, NamespaceSandbox>();
  readonly #diskWatch: DiskWatch;
  readonly #volumeWatch: VolumeWatch;
  readonly #open = sharedUntilFailure(() => this.#openHost());
  /** False where all users of a sandbox are the same account, which no image has. */
  #hasAccounts = true;
  #hasEgress: boolean;

  constructor(settings: LinuxNamespacesSettings, log: Logger) {
    this.#settings = settings;
    this.#hasEgress = settings.egress !== "none";
    this.#log = log;
    this.#directory = resolve(settings.directory);
    this.#diskWatch = new DiskWatch(this.#directory, log);
    this.#volumeWatch = new VolumeWatch({
      diskWatch: this.#diskWatch,
      log,
      measure: async (id) => (await this.#open()).volumes.measure(id),
      close: async (id) => (await this.#open()).volumes.close(id),
    });
  }

  get defaultLimits(): FullLimits {
    return this.#settings.limits;
  }

  get templates(): readonly string[] {
    return Object.keys(templateSettings(this.#settings));
  }

  get offline(): boolean {
    return !this.#hasEgress;
  }

  get images(): SandboxBackend["images"] {
    return this.#hasAccounts ? this.#images : undefined;
  }

  async check(): Promise<void> {
    const problems = await this.#problems();
    // Checked first: a configured backend with wrong settings must not be replaced by another backend.
    const wrong = await this.#wrongSettings();
    if (problems.length === 0 && wrong.length === 0) {
      await this.#open().catch((error: unknown) => {
        if (error instanceof SandboxError) throw error;
        problems.push(messageOf(error));
      });
    }
    if (problems.length + wrong.length === 0) return;
    const message = `linux-namespaces cannot use this host: ${[...problems, ...wrong].join("; ")}`;
    throw new SandboxError(wrong.length > 0 ? REASONS.host_setting_invalid : "host_unusable", message);
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted();
    const opened = await this.#open();
    // Until its record names them.
    using _image = opened.images.hold(spec.image?.id);
    using _snapshot = opened.snapshots.hold(spec.snapshot);
    const { chain, images, template } = await this.#filesOf(opened, spec);
    const paths = sandboxPaths(join(this.#directory, "sandboxes", spec.id));
    const limits = fullLimits(spec.limits, this.#settings.limits);
    if (spec.egress !== undefined) checkEgressRules(spec.egress);
    const volumes = await Promise.all((spec.mounts ?? []).map((mount) => opened.volumes.mounted(mount)));
    await mkdir(paths.directory, { mode: 0o700 });
    let network: number | undefined;
    let project: number | undefined;
    let group: ControlGroup | undefined;
    let firstId: number | undefined;
    try {
      const hasWayOut = spec.egress === undefined ? spec.allowInternetAccess : !areClosed(spec.egress);
      network = hasWayOut ? opened.egress?.take(spec.reaches) : undefined;
      project = opened.quotas?.take();
      firstId = opened.ids?.take();
      group = opened.groups.of(spec.id);
      const facts: SandboxFacts = {
        id: spec.id,
        template: spec.template,
        lowers: [...template.lowers, ...template.overlays.flatMap(({ lowers }) => lowers)],
        root: template,
        snapshots: chain,
        images,
        user: spec.image?.user ?? opened.templates.userOf(spec.template),
        workdir: spec.image?.workdir,
        limits,
        groups: group.record,
        memoryLayersMiB: opened.keepsLayersInMemory ? limits.diskMiB : undefined,
        project,
        firstId,
        network,
        isRestricted: spec.egress !== undefined,
        watchedVolumes: watchedOf(volumes),
      };
      const wanted = { paths, template, facts, group, volumes, hasLayers: false };
      const started = await this.#start(opened, wanted, spec.egress, signal);
      return await this.#hold(opened, { paths, group, ...started, isNew: true });
    } catch (error) {
      this.#alive.delete(spec.id);
      await this.#clear(opened, { paths, group, network, project, firstId }).catch((failure: unknown) => {
        this.#log.warn(
          { sandbox: spec.id, err: failure },
          "failed sandbox was not removed; the next start tries again",
        );
      });
      throw error;
    }
  }

  async #start(
    opened: Opened,
    sandbox: LaunchedSandbox,
    rules: EgressRules | undefined,
    signal: AbortSignal,
  ): Promise<Pick<RestartedSandbox, "facts" | "agent">> {
    const { group, paths, facts: planned } = sandbox;
    const { limits, network } = planned;
    // One request, and none of the server's own: a dozen files one after the other take the launcher no time.
    await opened.launcher
      .prepare({
        record: { path: paths.record, text: JSON.stringify(planned) },
        groups: group.paths,
        files: group.limitFiles(limits),
      })
      .catch((cause: unknown) => {
        const text = `cannot prepare the sandbox: ${messageOf(cause)}`;
        throw cause instanceof SandboxError ? cause : new SandboxError("internal_error", text, { cause });
      });
    if (network !== undefined && rules) await opened.egress?.restrict(network, rules);
    signal.throwIfAborted();
    const facts = await this.#launch(opened, sandbox);
    const agent = await this.#openAgent({ facts, paths }, signal);
    signal.throwIfAborted();
    return { facts, agent };
  }

  async #launch(opened: Opened, sandbox: LaunchedSandbox): Promise<SandboxFacts> {
    const { facts, group, paths } = sandbox;
    try {
      const words = launchInstructions(sandbox, {
        agent: opened.agent,
        users: opened.users,
        resourceLimits: this.#resourceLimits(opened, facts),
        allowsSudo: this.#settings.sudo,
        // It may get a network later.
        nameservers: opened.egress === undefined ? [] : this.#settings.nameservers,
      });
      const init = await opened.launcher.launch(paths.directory, group.unifiedPath, words, facts.firstId);
      if (facts.network !== undefined) await opened.egress?.connect(init, facts.network);
      return facts;
    } catch (error) {
      const text = /^map-ids (\/.*)$/s.exec(messageOf(error))?.[1];
      if (facts.firstId === undefined || text === undefined) throw mountRefusal(error) ?? error;
      const fields = { sandbox: facts.id, err: error };
      this.#log.warn(fields, "sandbox has the user ids of the host: its files cannot be id-mapped");
      return this.#launchUnmapped(opened, sandbox, facts.firstId);
    }
  }

  async #launchUnmapped(opened: Opened, sandbox: LaunchedSandbox, firstId: number): Promise<SandboxFacts> {
    const { hasLayers, paths, template } = sandbox;
    const made = hasLayers
      ? workDirectories(paths, template.overlays.length)
      : [paths.mountPoint, paths.layers];
    await opened.launcher.remove(paths.socket, paths.init, ...made);
    const facts = { ...sandbox.facts, firstId: undefined };
    await writeFacts(paths, facts);
    opened.ids?.release(firstId);
    return this.#launch(opened, { ...sandbox, facts });
  }

  /** Restarts a stopped sandbox on its layers. It stays stopped when this fails. */
  async #begin(
    opened: Opened,
    {
      before,
      paths,
      root,
      spec,
    }: {
      readonly before: SandboxFacts;
      readonly paths: SandboxPaths;
      readonly root: PreparedTemplate;
      readonly spec: SandboxSpec;
    },
    signal: AbortSignal,
  ): Promise<RestartedSandbox> {
    const rules = spec.egress ?? egressRulesOf({ ...spec, egress: undefined });
    checkEgressRules(rules);
    const volumes = await Promise.all((spec.mounts ?? []).map((mount) => opened.volumes.mounted(mount)));
    const limits = fullLimits(spec.limits, this.#settings.limits);
    const network = before.network ?? (areClosed(rules) ? undefined : opened.egress?.take());
    let group: ControlGroup | undefined;
    let firstId: number | undefined;
    try {
      firstId = opened.ids?.take();
      signal.throwIfAborted();
      await opened.launcher.remove(paths.socket, paths.init, ...workDirectories(paths, root.overlays.length));
      group = opened.groups.of(spec.id);
      const isRestricted = before.isRestricted === true || spec.egress !== undefined || areClosed(rules);
      const watchedVolumes = watchedOf(volumes);
      const facts = {
        ...before,
        limits,
        groups: group.record,
        network,
        isRestricted,
        firstId,
        watchedVolumes,
      };
      const wanted = { paths, template: root, facts, group, volumes, hasLayers: true };
      return { group, ...(await this.#start(opened, wanted, rules, signal)) };
    } catch (error) {
      const init = await readInit(paths);
      if (init !== undefined) await opened.launcher.end(init, group?.thawFile);
      await group?.remove();
      if (network !== undefined) await opened.egress?.disconnect(network);
      await writeFacts(paths, before);
      if (firstId !== undefined) opened.ids?.release(firstId);
      if (network !== undefined && before.network === undefined) opened.egress?.release(network);
      throw error;
    }
  }

  async recover(): Promise<readonly Sandbox[]> {
    const opened = await this.#open();
    const parent = join(this.#directory, "sandboxes");
    const ids = (await readdir(parent)).filter((id) => !this.#alive.has(id));
    const adopted = await Promise.all(ids.map((id) => this.#adopt(opened, sandboxPaths(join(parent, id)))));
    await opened.groups.removeOthers(new Set(this.#alive.keys()));
    await opened.egress?.removeOthers();
    await opened.templates.removeUnused(await this.#lowersInUse());
    await this.#collect(opened);
    return adopted.filter((sandbox) => sandbox !== undefined);
  }

  /** Facts about this host since a successful check. */
  async found(): Promise<FoundOnHost | undefined> {
    return this.#open.current();
  }

  async close(): Promise<void> {
    const opened = await this.#open.current();
    await Promise.all([...this.#alive.values()].map((sandbox) => sandbox.detach()));
    if (opened?.egress !== undefined) await closeEgress(this.#directory, opened.egress);
    this.#alive.clear();
    await opened?.groups.close();
    await opened?.launcher.close();
    this.#open.forget();
  }

  get aliveCount(): number {
    return this.#alive.size;
  }

  /** Layers of a sandbox's root: its template or image below the snapshot that it starts from. */
  async #filesOf(opened: Opened, { image, snapshot, template: name }: SandboxSpec): Promise<SandboxLayers> {
    const images = image === undefined ? undefined : await opened.images.chainOf(image.id);
    const template =
      images === undefined
        ? await this.#templateOf(opened, name)
        : { name, lowers: opened.images.lowers(images), binds: [], overlays: [] };
    if (snapshot === undefined) return { chain: [], images, template };
    const chain = await opened.snapshots.chainOf(snapshot, { template: name, image: image?.id });
    const lowersOf = (layer: string, own: readonly string[]) => [
      ...opened.snapshots.lowers(chain, layer),
      ...own,
    ];
    return {
      chain,
      images,
      template: {
        ...template,
        lowers: lowersOf(ROOT_LAYER, template.lowers),
        overlays: template.overlays.map((overlay, index) => ({
          ...overlay,
          lowers: lowersOf(overlayLayer(index), overlay.lowers),
        })),
      },
    };
  }

  async *#pack({ image, snapshot }: PackSource, signal: AbortSignal): AsyncIterable<Uint8Array> {
    const { images, snapshots } = await this.#open();
    using _held = snapshots.hold(snapshot);
    const chain = snapshot === undefined ? [] : await snapshots.chainOf(snapshot, { template: "", image });
    yield* images.pack(image, snapshots.lowers(chain, ROOT_LAYER), signal);
  }

  async #templateOf(opened: Opened, name: string): Promise<PreparedTemplate> {
    return opened.templates.get(name).catch((error: unknown) => {
      if (error instanceof SandboxError && error.code === "not_found") throw error;
      // The error names paths of this host, which clients must not see.
      this.#log.error({ template: name, err: error }, "template cannot be built");
      const message = `template '${name}' cannot be made: the log of the server says why`;
      throw new SandboxError("template_unusable", message, { cause: error });
    });
  }

  #resourceLimits({ groups, users }: Opened, { firstId, limits }: SandboxFacts): Record<string, number> {
    const hasOwnCount = users !== undefined || firstId !== undefined;
    return {
      files: this.#settings.limits.openFiles,
      ...(!groups.found.has("memory") && { data: limits.memoryMiB * MEBIBYTE }),
      // Elsewhere the kernel would count the processes of all sandboxes together.
      ...(!groups.found.has("pids") && hasOwnCount && { processes: limits.processes }),
    };
  }

  async #openAgent(
    { facts, paths }: Pick<HeldSandbox, "facts" | "paths">,
    signal: AbortSignal,
  ): Promise<AgentConnection> {
    const stream = await connectAgent(paths.socket, signal);
    const { writeInPlaceLimit } = this.#settings;
    return AgentConnection.open(stream, {
      defaultUser: facts.user,
      writeInPlaceLimit,
      openPeer: () => openInit(paths),
    });
  }

  async #hold(opened: Opened, sandbox: HeldSandbox): Promise<NamespaceSandbox> {
    const { facts, paths } = sandbox;
    const { root } = facts;
    const made = new NamespaceSandbox({
      ...opened,
      ...sandbox,
      snapshots: opened.users === undefined ? opened.snapshots : undefined,
      limitsOf: (limits) => fullLimits(limits, this.#settings.limits),
      diskScanEntries: this.#settings.diskScanEntries,
      log: this.#log,
      ...(this.#settings.diskLimit === "end"
        ? { diskWatch: this.#diskWatch, volumeWatch: this.#volumeWatch }
        : { diskWatch: undefined, volumeWatch: undefined }),
      // Layers in memory go with the last process.
      onRestart:
        root === undefined || facts.memoryLayersMiB !== undefined
          ? undefined
          : (spec, before, signal) => this.#begin(opened, { before, paths, root, spec }, signal),
      onDestroyed: async () => {
        this.#alive.delete(facts.id);
        await this.#collect(opened);
      },
    });
    this.#alive.set(facts.id, made);
    return made;
  }

  async #adopt(opened: Opened, paths: SandboxPaths): Promise<NamespaceSandbox | undefined> {
    const facts = await readFacts(paths);
    const init = await readInit(paths);
    const group = new ControlGroup(facts?.groups ?? {});
    if (facts?.network !== undefined) opened.egress?.reclaim(facts.network, facts.isRestricted === true);
    if (facts?.firstId !== undefined) opened.ids?.reclaim(facts.firstId);
    // A commit took the files of one that has none.
    if (facts?.isStopped === true && (await canAccess(join(paths.layers, ROOT_LAYER)))) {
      if (facts.project !== undefined) opened.quotas?.reclaim(facts.project);
      return this.#hold(opened, { paths, facts, group, agent: undefined, isNew: false });
    }
    if (facts !== undefined && init !== undefined && (await isAlive(init))) {
      try {
        // The server may have ended during a pause; the agent of a frozen sandbox cannot answer.
        if (group.canFreeze) await group.thaw();
        if (facts.project !== undefined) opened.quotas?.reclaim(facts.project);
        if (facts.network !== undefined) await opened.egress?.reconnect(init, facts.network);
        const agent = await this.#openAgent({ facts, paths }, AbortSignal.timeout(ADOPTION_TIMEOUT_MS));
        return await this.#hold(opened, { paths, facts, group, agent, isNew: false });
      } catch (error) {
        this.#log.warn({ sandbox: facts.id, err: error }, "sandbox does not answer; removing it");
      }
    }
    const { firstId, network, project } = facts ?? {};
    await this.#clear(opened, { paths, group, network, project, firstId });
    return undefined;
  }

  async #clear(opened: Opened, remains: Remains): Promise<void> {
    const { firstId, group, network, paths, project } = remains;
    const init = await readInit(paths);
    if (init !== undefined) await opened.launcher.end(init, group?.thawFile);
    await group?.remove();
    if (network !== undefined) await opened.egress?.disconnect(network);
    await opened.launcher.remove(paths.directory);
    if (project !== undefined) await opened.quotas?.release(project);
    // After its record is removed: no two records may name the same network.
    if (network !== undefined) opened.egress?.release(network);
    if (firstId !== undefined) opened.ids?.release(firstId);
  }

  async #lowersInUse(): Promise<Set<string>> {
    const paths = new Set<string>();
    for (const id of this.#alive.keys()) {
      const facts = await readFacts(sandboxPaths(join(this.#directory, "sandboxes", id)));
      for (const lower of facts?.lowers ?? []) paths.add(lower);
    }
    return paths;
  }

  /** Frees removed snapshots and images that nothing depends on any more. */
  async #collect({ images, snapshots }: Opened): Promise<void> {
    await snapshots.collect();
    await images.collect();
  }

  async #sandboxes(): Promise<readonly SandboxFacts[]> {
    const parent = join(this.#directory, "sandboxes");
    const read = (await readdir(parent)).map((id) => readFacts(sandboxPaths(join(parent, id))));
    return (await Promise.all(read)).filter((facts) => facts !== undefined);
  }

  async #problems(): Promise<string[]> {
    const problems: string[] = [];
    if (process.platform !== "linux") return ["it needs Linux"];
    // With auto there is none where it fails.
    if (this.#settings.egress === "nat" && needsUplink(this.#settings)) {
      await findUplinkProgram(this.#settings.egressProgram).catch((error: unknown) =>
        problems.push(messageOf(error)),
      );
    }
    if (agentBinary() === undefined) {
      problems.push(
        "the agent has not been built: install a C compiler (gcc, musl-tools or clang) and run set-up",
      );
    }
    for (const name of ["mnt", "pid", "uts", "ipc", "net", "cgroup"]) {
      if (!(await canAccess(`/proc/self/ns/${name}`))) problems.push(`the kernel has no ${name} namespaces`);
    }
    return problems;
  }

  async #wrongSettings(): Promise<string[]> {
    const wrong = await wrongDirectories(this.#settings.templates);
    if (/[\\:,\s]/.test(this.#directory))
      wrong.push(`directory '${this.#directory}' must not contain spaces, commas, colons or backslashes`);
    return wrong;
  }

  async #openHost(): Promise<Opened> {
    const opened = await openHost({
      settings: this.#settings,
      log: this.#log,
      directory: this.#directory,
      sandboxes: () => this.#sandboxes(),
    });
    this.#hasAccounts = opened.users?.hasAccounts ?? true;
    this.#hasEgress = opened.egress !== undefined;
    return opened;
  }
}

/** The first process of a sandbox, which is its agent. Undefined when another one has its pid. */
async function openInit(paths: SandboxPaths): Promise<ProcessDescriptors | undefined> {
  const init = await readInit(paths);
  const opened = init && ProcessDescriptors.open(init.pid);
  if (init === undefined || opened === undefined || (await isAlive(init))) return opened;
  opened.close();
  return undefined;
}

/** Error of a failed launch that could not mount a volume; undefined for other failures. */
function mountRefusal(error: unknown): SandboxError | undefined {
  const [, path, reason] = /^volume (\/.*): (.*)$/s.exec(messageOf(error)) ?? [];
  if (path === undefined) return undefined;
  // A link on the way appears as ENOTDIR or ELOOP.
  const text = `no volume can be mounted at '${path}': ${reason}`;
  return new SandboxError("mounts_invalid", text, { cause: error });
}

/** Ids for the record; undefined for none, as in records of earlier servers. */
function watchedOf(volumes: readonly MountedVolume[]): readonly string[] | undefined {
  const watched = volumes.filter(({ isWatched }) => isWatched).map(({ id }) => id);
  return watched.length === 0 ? undefined : watched;
}
