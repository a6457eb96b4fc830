import { duplexPair, type Duplex } from "node:stream";
import { SandboxError } from "../kernel/errors.js";
import { definePlugin, type Plugin } from "../plugin/plugin.js";
import {
  Backends,
  type ImageId,
  type ImageSource,
  type Limits,
  type Loss,
  type PackSource,
  type Sandbox,
  type SandboxBackend,
  type SandboxId,
  type SandboxSpec,
  type SnapshotId,
  type Stats,
  type User,
  type VolumeId,
} from "../sandbox/contract/backend.js";
import { type EgressRules, egressRulesOf } from "../sandbox/contract/egress-rules.js";
import type { FullLimits } from "../sandbox/contract/full-limits.js";
import type { Command, Process } from "../sandbox/contract/process.js";
import { MemoryFiles } from "./memory-files.js";
import { tarArchive } from "./tar-archive.js";
import { MemoryProcess, type Program } from "./memory-process.js";
import type { AddressLease, AddressLeases, NetworkLeases } from "../sandbox/contract/address-leases.js";

/** A step of `provision` that a test can fail or delay. */
export type ProvisionStep = "reserve" | "files" | "start";

/** Serves one connection to a port of a sandbox. */
export type PortHandler = (connection: Duplex, sandbox: MemorySandbox) => void;

/** Script of a memory backend. Every `on…` hook can fail its operation by throwing and delay it by waiting. */
export interface MemoryBackendOptions {
  /** `memory` when absent. */
  readonly name?: string | undefined;
  readonly isolated?: boolean | undefined;
  readonly defaultLimits?: FullLimits | undefined;
  readonly templates?: readonly string[] | undefined;
  readonly offline?: boolean | undefined;
  /** False: its sandboxes have no `networking`. */
  readonly networking?: boolean | undefined;
  /** Programs by name; a path means its last component. */
  readonly programs?: Readonly<Record<string, Program>> | undefined;
  /** Handlers of ports in every sandbox. */
  readonly ports?: Readonly<Record<number, PortHandler>> | undefined;
  readonly onCheck?: (() => void | Promise<void>) | undefined;
  readonly onProvision?:
    | ((step: ProvisionStep, spec: SandboxSpec, signal: AbortSignal) => void | Promise<void>)
    | undefined;
  /** Adds the facet `pausing`. Its hooks run before the state changes. */
  readonly pausing?:
    | {
        readonly onPause?: ((id: SandboxId) => void | Promise<void>) | undefined;
        readonly onResume?: ((id: SandboxId) => void | Promise<void>) | undefined;
      }
    | undefined;
  /** Adds the facet `stopping`. Its hooks run before the state changes. */
  readonly stopping?:
    | {
        readonly onStop?: ((id: SandboxId) => void | Promise<void>) | undefined;
        readonly onStart?: ((id: SandboxId, signal: AbortSignal) => void | Promise<void>) | undefined;
      }
    | undefined;
  /** Called for each measurement: what a sandbox uses. */
  readonly usage?: ((id: SandboxId) => Partial<Stats> & Pick<Sandbox, "cpuSeconds">) | undefined;
  /** The facet of its sandboxes. */
  readonly shortages?: Sandbox["shortages"];
  readonly snapshots?:
    | {
        /** Called before anything is kept. */
        readonly onTake?: ((id: SnapshotId) => void | Promise<void>) | undefined;
        /** Called before anything is removed. */
        readonly onRemove?: ((id: SnapshotId) => void | Promise<void>) | undefined;
      }
    | undefined;
  /** Adds `images`, and the facet `committing` of their sandboxes. Its hooks run before anything changes. */
  readonly images?:
    | {
        /** Fills the files of an image, which at first has the directories of every sandbox. */
        readonly onUnpack?:
          | ((
              id: ImageId,
              source: ImageSource,
              files: MemoryFiles,
              signal: AbortSignal,
            ) => void | Promise<void>)
          | undefined;
        readonly onCommit?: ((id: ImageId, sandbox: SandboxId) => void | Promise<void>) | undefined;
        readonly onRemove?: ((id: ImageId) => void | Promise<void>) | undefined;
      }
    | undefined;
  /** Adds the facet `resizing`. Its hook runs before the limits change. */
  readonly resizing?:
    | { readonly onResize?: ((id: SandboxId, limits: Limits) => void | Promise<void>) | undefined }
    | undefined;
  readonly volumes?:
    | {
        /** Called before anything is made. */
        readonly onMake?: ((id: VolumeId) => void | Promise<void>) | undefined;
        /** Called before anything is removed. */
        readonly onRemove?: ((id: VolumeId) => void | Promise<void>) | undefined;
      }
    | undefined;
  /** Called before anything is destroyed. `attempt` counts from 1. */
  readonly onDestroy?: ((id: SandboxId, attempt: number) => void | Promise<void>) | undefined;
  /** Called before rules are replaced. */
  readonly onRestrict?: ((id: SandboxId, rules: EgressRules) => void | Promise<void>) | undefined;
  /** Chooses the sandboxes that outlived the last server; all living ones when absent. */
  readonly onRecover?:
    | ((alive: readonly MemorySandbox[]) => readonly Sandbox[] | Promise<readonly Sandbox[]>)
    | undefined;
}

/** What a memory backend still has, for tests that nothing leaks. */
export interface Alive {
  readonly sandboxes: number;
  readonly processes: number;
  readonly connections: number;
  readonly openFiles: number;
}

const STEPS: readonly ProvisionStep[] = ["reserve", "files", "start"];
const MEBIBYTE = 2 ** 20;

const USERS: readonly [User, ...User[]] = [
  { name: "user", uid: 1000, gid: 1000, home: "/home/user", shell: "/bin/bash" },
  { name: "root", uid: 0, gid: 0, home: "/root", shell: "/bin/bash" },
];

const OTHER_UID = 1001;

/** A backend whose sandboxes are objects of this process, for tests of the layers above backends. */
export class MemoryBackend implements SandboxBackend {
  readonly name: string;
  readonly isolated: boolean;
  readonly defaultLimits?: FullLimits;
  readonly templates?: readonly string[];
  readonly offline?: boolean;
  readonly snapshots?: NonNullable<SandboxBackend["snapshots"]>;
  readonly images?: NonNullable<SandboxBackend["images"]>;
  readonly volumes?: NonNullable<SandboxBackend["volumes"]>;
  readonly #options: MemoryBackendOptions;
  readonly #sandboxes = new Map<SandboxId, MemorySandbox>();
  readonly #kept = new Map<SnapshotId, MemoryFiles>();
  readonly #images = new Map<ImageId, MemoryFiles>();
  readonly #volumes = new Map<VolumeId, MemoryFiles>();

  constructor(options: MemoryBackendOptions = {}) {
    this.#options = options;
    this.name = options.name ?? "memory";
    this.isolated = options.isolated ?? true;
    if (options.defaultLimits !== undefined) this.defaultLimits = options.defaultLimits;
    if (options.templates !== undefined) this.templates = options.templates;
    if (options.offline !== undefined) this.offline = options.offline;
    const { images, snapshots, volumes } = options;
    if (images !== undefined) this.images = this.#imagesOf(images);
    if (snapshots !== undefined) {
      this.snapshots = {
        list: async () => [...this.#kept.keys()],
        remove: async (id) => {
          await snapshots.onRemove?.(id);
          this.#kept.delete(id);
        },
      };
    }
    if (volumes === undefined) return;
    this.volumes = {
      make: async ({ id }) => {
        await volumes.onMake?.(id);
        if (this.#volumes.has(id)) throw new SandboxError("volume_exists", `volume ${id} exists`);
        this.#volumes.set(
          id,
          MemoryFiles.empty(USERS, () => Date.now()),
        );
      },
      list: async () => [...this.#volumes.keys()],
      remove: async (id) => {
        await volumes.onRemove?.(id);
        this.#volumes.delete(id);
      },
      usage: async (id) => {
        const found = this.#volumes.get(id);
        if (found === undefined) throw new SandboxError("volume_not_found", `volume '${id}' not found`);
        return found.usedBytes;
      },
    };
  }

  #imagesOf(hooks: NonNullable<MemoryBackendOptions["images"]>): NonNullable<SandboxBackend["images"]> {
    return {
      unpack: async (id, source, signal) => {
        signal.throwIfAborted();
        const files = newFiles();
        await hooks.onUnpack?.(id, source, files, signal);
        signal.throwIfAborted();
        this.#images.set(id, files);
      },
      list: async () => [...this.#images.keys()],
      remove: async (id) => {
        await hooks.onRemove?.(id);
        this.#images.delete(id);
      },
      usage: async (id) => imageIn(this.#images, id).usedBytes,
      pack: (source, signal) => this.#pack(source, signal),
    };
  }

  async *#pack({ image, snapshot }: PackSource, signal: AbortSignal): AsyncIterable<Uint8Array> {
    signal.throwIfAborted();
    const below = imageIn(this.#images, image);
    const files = snapshot === undefined ? below : this.#kept.get(snapshot);
    if (files === undefined) throw new SandboxError("snapshot_not_found", `snapshot '${snapshot}' not found`);
    yield tarArchive([...files.entries()]);
  }

  /** Existing sandboxes, incomplete ones included. */
  get sandboxes(): ReadonlyMap<SandboxId, MemorySandbox> {
    return this.#sandboxes;
  }

  get alive(): Alive {
    const all = [...this.#sandboxes.values()];
    return {
      sandboxes: all.length,
      processes: sum(all.map((sandbox) => sandbox.processes.size)),
      connections: sum(all.map((sandbox) => sandbox.connections)),
      openFiles: sum(all.map((sandbox) => sandbox.files.open)),
    };
  }

  async check(): Promise<void> {
    await this.#options.onCheck?.();
  }

  async provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    let sandbox: MemorySandbox | undefined;
    try {
      for (const step of STEPS) {
        signal.throwIfAborted();
        await this.#options.onProvision?.(step, spec, signal);
        if (step === "reserve") {
          if (this.#sandboxes.has(spec.id)) {
            throw new SandboxError("sandbox_exists", `sandbox ${spec.id} exists`);
          }
          sandbox = new MemorySandbox(spec, this.#options, {
            kept: this.#kept,
            images: this.#images,
            volumes: this.#volumes,
            gone: () => this.#sandboxes.delete(spec.id),
          });
          this.#sandboxes.set(spec.id, sandbox);
        }
      }
      signal.throwIfAborted();
      if (sandbox === undefined) throw new Error("a step is missing");
      return sandbox;
    } catch (error) {
      sandbox?.vanish();
      throw error;
    }
  }

  async recover(): Promise<readonly Sandbox[]> {
    const alive = [...this.#sandboxes.values()];
    return this.#options.onRecover?.(alive) ?? alive;
  }
}

/** A sandbox of the memory backend, whose programs are functions of the test. */
export class MemorySandbox implements Sandbox {
  readonly id: SandboxId;
  readonly spec: SandboxSpec;
  readonly files: MemoryFiles;
  readonly lost: Promise<Loss>;
  readonly pausing?: { pause(): Promise<void>; resume(): Promise<void> };
  readonly stopping?: NonNullable<Sandbox["stopping"]>;
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  readonly snapshots?: { take(id: SnapshotId): Promise<void> };
  readonly committing?: { commit(id: ImageId): Promise<void> };
  readonly shortages?: NonNullable<Sandbox["shortages"]>;
  readonly #options: MemoryBackendOptions;
  readonly #gone: () => void;
  readonly #lose: (loss: Loss) => void;
  readonly #processes = new Map<number, MemoryProcess>();
  readonly #ports: Map<number, PortHandler>;
  readonly #connections = new Set<Duplex>();
  #egress: EgressRules | undefined;
  #limits: Limits;
  #lastPid = 1;
  #destroyAttempts = 0;
  #isGone = false;
  #isPaused = false;
  #isStopped = false;
  #isCommitted = false;

  /** @param home snapshots, images and volumes of its backend, and a callback for its end. */
  constructor(
    spec: SandboxSpec,
    options: MemoryBackendOptions,
    home: {
      readonly kept: Map<SnapshotId, MemoryFiles>;
      readonly images: Map<ImageId, MemoryFiles>;
      readonly volumes: ReadonlyMap<VolumeId, MemoryFiles>;
      readonly gone: () => void;
    },
  ) {
    this.id = spec.id;
    this.spec = spec;
    this.files = newFiles();
    if (spec.image !== undefined) this.files.copyFrom(imageIn(home.images, spec.image.id));
    const { promise, resolve } = Promise.withResolvers<Loss>();
    this.lost = promise;
    this.#lose = resolve;
    this.#options = options;
    this.#gone = home.gone;
    this.#egress = spec.egress;
    this.#limits = spec.limits;
    if (options.shortages !== undefined) this.shortages = options.shortages;
    if (options.networking !== false) this.networking = { restrict: (rules) => this.#restrict(rules) };
    if (spec.snapshot !== undefined) {
      const kept = home.kept.get(spec.snapshot);
      if (kept === undefined)
        throw new SandboxError("snapshot_not_found", `snapshot '${spec.snapshot}' not found`);
      this.files.copyFrom(kept);
    }
    for (const { volume, path, readOnly } of spec.mounts ?? []) {
      const found = home.volumes.get(volume);
      if (found === undefined) throw new SandboxError("volume_not_found", `volume '${volume}' not found`);
      this.files.mount(path, found, readOnly);
    }
    const { images, resizing, snapshots } = options;
    if (images !== undefined && spec.image !== undefined && spec.snapshot === undefined) {
      this.committing = {
        commit: async (id) => {
          await images.onCommit?.(id, this.id);
          this.#requireAlive();
          this.#isCommitted = true;
          this.#endAll();
          home.images.set(id, copyOf(this.files));
        },
      };
    }
    if (resizing !== undefined) {
      this.resizing = {
        resize: async (limits) => {
          this.#requireAlive();
          await resizing.onResize?.(this.id, limits);
          this.#limits = limits;
        },
      };
    }
    if (snapshots !== undefined) {
      this.snapshots = {
        take: async (id) => {
          await snapshots.onTake?.(id);
          this.#requireAlive();
          home.kept.set(id, copyOf(this.files));
        },
      };
    }
    this.#ports = new Map(
      Object.entries(options.ports ?? {}).map(([port, handler]) => [Number(port), handler]),
    );
    const { pausing, stopping } = options;
    if (stopping !== undefined) {
      this.stopping = {
        stop: async () => {
          await stopping.onStop?.(this.id);
          this.#isStopped = true;
          this.#isPaused = false;
          this.#endAll();
        },
        start: async (asked, signal) => {
          if (!this.#isStopped) return;
          await stopping.onStart?.(this.id, signal);
          signal.throwIfAborted();
          this.#limits = asked.limits;
          this.#egress = asked.egress ?? egressRulesOf({ ...asked, egress: undefined });
          this.#isStopped = this.#isPaused = false;
        },
      };
    }
    if (pausing === undefined) return;
    this.pausing = {
      pause: async () => {
        await pausing.onPause?.(this.id);
        this.#isPaused = true;
      },
      resume: async () => {
        await pausing.onResume?.(this.id);
        this.#isPaused = false;
      },
    };
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  get isStopped(): boolean {
    return this.#isStopped;
  }

  get processes(): ReadonlyMap<number, Process> {
    return this.#processes;
  }

  get egress(): EgressRules | undefined {
    return this.#egress;
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** Starts to listen on a port, or stops without a handler. */
  listen(port: number, handler: PortHandler | undefined): void {
    if (handler === undefined) this.#ports.delete(port);
    else this.#ports.set(port, handler);
  }

  async spawn(command: Command): Promise<Process> {
    this.#requireUp();
    const user = this.#account(command.user);
    if (user === undefined) throw new SandboxError("user_unknown", `invalid username: '${command.user}'`);
    const cwd = command.cwd ?? user.workdir ?? user.home;
    const info = await this.files.stat(cwd).catch(() => undefined);
    if (info?.kind !== "directory") {
      throw new SandboxError("cwd_not_found", `cwd '${cwd}' does not exist`);
    }
    this.#requireUp();
    const pid = (this.#lastPid += 1);
    const programs = this.#options.programs ?? {};
    const name = command.path.slice(command.path.lastIndexOf("/") + 1);
    const process = new MemoryProcess({
      pid,
      program: Object.hasOwn(programs, name) ? programs[name] : undefined,
      command,
      cwd,
      user,
      files: this.files,
      onExit: () => this.#processes.delete(pid),
    });
    this.#processes.set(pid, process);
    return process;
  }

  async user(name?: string): Promise<User> {
    const user = this.#account(name);
    if (user === undefined) throw new SandboxError("account_not_found", `unknown user ${name}`);
    return user;
  }

  async dial(port: number, signal: AbortSignal): Promise<Duplex> {
    this.#requireUp();
    signal.throwIfAborted();
    const handler = this.#ports.get(port);
    if (handler === undefined) {
      throw new SandboxError("port_closed", `nothing listens on port ${port}`);
    }
    const [near, far] = duplexPair();
    this.#connections.add(near);
    near.once("close", () => {
      this.#connections.delete(near);
      far.destroy();
    });
    far.once("close", () => near.destroy());
    far.on("error", () => {});
    handler(far, this);
    return near;
  }

  async stats(): Promise<Stats> {
    this.#requireAlive();
    return {
      cpuCount: this.#limits.cpuCount ?? 1,
      cpuUsedPercent: 0,
      memoryUsedBytes: MEBIBYTE,
      memoryTotalBytes: (this.#limits.memoryMiB ?? 512) * MEBIBYTE,
      memoryCacheBytes: 0,
      diskUsedBytes: MEBIBYTE,
      diskTotalBytes: (this.#limits.diskMiB ?? 1024) * MEBIBYTE,
      ...this.#options.usage?.(this.id),
    };
  }

  get cpuSeconds(): number | undefined {
    return this.#options.usage?.(this.id).cpuSeconds;
  }

  async destroy(): Promise<void> {
    this.#destroyAttempts += 1;
    await this.#options.onDestroy?.(this.id, this.#destroyAttempts);
    this.vanish();
  }

  /** Ends by itself and reports why. */
  lose(loss: Loss): void {
    this.vanish();
    this.#lose(loss);
  }

  /** Disappears silently, as when a backend has lost it. */
  vanish(): void {
    this.#isGone = true;
    this.#endAll();
    this.#gone();
  }

  /** The default account exists in every image. */
  #account(name = this.spec.image?.user ?? USERS[0].name): User | undefined {
    const { image } = this.spec;
    const ofImage = { ...USERS[0], name, uid: OTHER_UID, gid: OTHER_UID, home: `/home/${name}` };
    const user = USERS.find((one) => one.name === name) ?? (image?.user === name ? ofImage : undefined);
    return user === undefined || image?.workdir === undefined ? user : { ...user, workdir: image.workdir };
  }

  #endAll(): void {
    for (const process of this.#processes.values()) void process.kill("SIGKILL");
    for (const connection of this.#connections) connection.destroy();
  }

  async #restrict(rules: EgressRules): Promise<void> {
    this.#requireAlive();
    await this.#options.onRestrict?.(this.id, rules);
    this.#egress = rules;
  }

  #requireUp(): void {
    this.#requireAlive();
    if (this.#isStopped) throw new SandboxError("sandbox_stopped", `sandbox ${this.id} is stopped`);
  }

  #requireAlive(): void {
    const isOver = this.#isGone || this.#isCommitted;
    if (isOver) throw new SandboxError("sandbox_ended", `sandbox ${this.id} is gone`);
  }
}

/** A plugin that adds a memory backend. In a second server the same plugin finds the first one's sandboxes. */
export interface MemoryBackendPlugin extends Plugin {
  readonly backend: MemoryBackend;
}

/** Makes the plugin `memory`: `plugins: [[memoryBackend({ programs }), {}]]`. */
export function memoryBackend(options: MemoryBackendOptions = {}): MemoryBackendPlugin {
  const backend = new MemoryBackend(options);
  const plugin = definePlugin({
    name: backend.name,
    requires: { backends: Backends },
    setup(_plugin, { backends }) {
      backends.add(backend);
    },
  });
  return { ...plugin, backend };
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

function newFiles(): MemoryFiles {
  return new MemoryFiles(USERS, () => Date.now());
}

function copyOf(files: MemoryFiles): MemoryFiles {
  const copy = newFiles();
  copy.copyFrom(files);
  return copy;
}

/** @throws SandboxError not_found */
function imageIn(images: ReadonlyMap<ImageId, MemoryFiles>, id: ImageId): MemoryFiles {
  const found = images.get(id);
  if (found === undefined) throw new SandboxError("image_not_found", `image '${id}' not found`);
  return found;
}

/** In-memory leases for tests of backends; share one instance between servers on one ledger. */
export class MemoryLeases implements AddressLeases {
  readonly #leases = new Map<string, AddressLease & { readonly network: string }>();

  /** All leases of all networks, in the order in which they were taken. */
  list(): readonly (AddressLease & { readonly network: string })[] {
    return [...this.#leases.values()];
  }

  of(network: string): NetworkLeases {
    const own = () => [...this.#leases.values()].filter((lease) => lease.network === network);
    return {
      all: async () => own().map(({ address, holder }) => ({ address, holder })),
      heldBy: async (holder) =>
        own()
          .filter((lease) => lease.holder === holder)
          .map(({ address }) => address),
      isFree: async (address) => !this.#leases.has(address),
      take: async (holder, addresses) => {
        const address = addresses.find((each) => !this.#leases.has(each));
        if (address !== undefined) this.#leases.set(address, { network, address, holder });
        return address;
      },
      release: async (holder) => {
        for (const lease of own()) if (lease.holder === holder) this.#leases.delete(lease.address);
      },
    };
  }
}
