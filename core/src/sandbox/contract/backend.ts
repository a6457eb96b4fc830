import type { Duplex } from "node:stream";
import { createToken } from "../../kernel/token.js";
import type { EgressRules } from "./egress-rules.js";
import type { Files } from "./files.js";
import type { FullLimits } from "./full-limits.js";
import type { AdoptedProcess, Command, Process, ResourceShortage } from "./process.js";

/** `[a-z0-9]+`, chosen by the server. */
export type SandboxId = string;
/** `[a-z0-9]+`, chosen by the server. */
export type SnapshotId = string;
/** `[a-z0-9]+`, chosen by the server. */
export type VolumeId = string;
/** `[a-z0-9]+`, chosen by the server. */
export type ImageId = string;

/**
 * Resource limits of a sandbox. Absent = the backend's default; a backend enforces those that it can, as its docs say.
 */
export interface Limits {
  readonly cpuCount?: number | undefined;
  readonly memoryMiB?: number | undefined;
  readonly diskMiB?: number | undefined;
  readonly processes?: number | undefined;
}

export interface Mount {
  readonly volume: VolumeId;
  /** Absolute, without `.`, `..` and empty names; not below another mount. Created if missing. */
  readonly path: string;
  readonly readOnly: boolean;
}

/** A new volume, owned by the default user of its sandboxes. */
export interface VolumeSpec {
  readonly id: VolumeId;
  /** Limit of its contents, where the backend can enforce one. */
  readonly sizeMiB: number;
}

/** A root file system that the server has brought to a backend, and how a sandbox uses it. */
export interface SandboxImage {
  readonly id: ImageId;
  /** Default account. It exists in the image. */
  readonly user: string;
  /** Directory for commands without one, and for relative paths; absent = the home of each user. */
  readonly workdir?: string | undefined;
}

/** An image in an OCI image layout. Every byte of its layers is hostile. */
export interface ImageSource {
  /** Directory on the host. */
  readonly layout: string;
  /** Name of the image in the layout's index. */
  readonly reference: string;
  /** Most bytes and entries that it may unpack to. */
  readonly maxBytes: number;
  readonly maxEntries: number;
}

/** Files that become an archive. */
export interface PackSource {
  readonly image: ImageId;
  /** Snapshot of a sandbox with that image, whose files are above those of the image. */
  readonly snapshot?: SnapshotId | undefined;
}

/** A service at an IPv4 address and a TCP port. */
export interface Service {
  readonly address: string;
  readonly port: number;
}

export interface SandboxSpec {
  readonly id: SandboxId;
  /** Name of a template that the server's configuration lists; with `image`, any name. */
  readonly template: string;
  /** Root file system in place of that of a configured template; only for a backend with `images`. */
  readonly image?: SandboxImage | undefined;
  readonly limits: Limits;
  /** False: no route out of the sandbox, except to destinations that `egress` allows. */
  readonly allowInternetAccess: boolean;
  /**
   * Rules for outgoing connections, `allowInternetAccess: false` included; absent = no rules. A backend that cannot
   * enforce rules ignores them and makes sandboxes without `networking`, which the server then does not use.
   */
  readonly egress?: EgressRules | undefined;
  /**
   * Services of the operator that it reaches where it has a way out, although the backend keeps sandboxes from their
   * addresses: the proxy of a build.
   */
  readonly reaches?: readonly Service[] | undefined;
  /** Snapshot whose files the sandbox starts with. It was taken of a sandbox of the same template or image. */
  readonly snapshot?: SnapshotId | undefined;
  /** Volumes of this backend, mounted before the first process; only for a backend with `volumes`. */
  readonly mounts?: readonly Mount[] | undefined;
}

export interface User {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
  /** Absolute path inside the sandbox. */
  readonly home: string;
  readonly shell: string;
  /** Where its relative paths start, and commands without a directory; absent = its home. */
  readonly workdir?: string | undefined;
}

/** Current resource usage of a sandbox. Bytes, unless the name says otherwise. */
export interface Stats {
  readonly cpuCount: number;
  /** Sum over its CPUs, 0 to 100 × cpuCount. */
  readonly cpuUsedPercent: number;
  readonly memoryUsedBytes: number;
  readonly memoryTotalBytes: number;
  readonly memoryCacheBytes: number;
  readonly diskUsedBytes: number;
  readonly diskTotalBytes: number;
}

/** Use of the processors as E2B gives it, with two decimals: 100 means all CPUs together. */
export function cpuSharePercent({ cpuUsedPercent, cpuCount }: Stats): number {
  return Math.round((cpuUsedPercent / Math.max(cpuCount, 1)) * 100) / 100;
}

/** Makes sandboxes of one kind. */
export interface SandboxBackend {
  readonly name: string;
  /** True when a sandbox cannot reach the host's files, processes and network. */
  readonly isolated: boolean;
  /** Limits of a sandbox whose creator and template set none; absent = variable or unknown. */
  readonly defaultLimits?: FullLimits;
  /** Names of its templates; absent = unknown until a sandbox is made. */
  readonly templates?: readonly string[];
  /** True when none of its sandboxes has a network, whatever a creator asks for. */
  readonly offline?: boolean;
  /**
   * Rejects with every reason why this host cannot run it. Another default may then replace it, unless the error is a
   * SandboxError `unavailable` (busy) or `invalid_argument` (misconfigured).
   */
  check(): Promise<void>;
  /** All or nothing: when it rejects, nothing of the sandbox is left. */
  provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox>;
  /**
   * The sandboxes that outlived the last server: each works, or was stopped. Unusable ones have been destroyed
   * completely by then.
   */
  recover(): Promise<readonly Sandbox[]>;
  /** Snapshots, which outlive their sandboxes; for a backend whose sandboxes have the facet `snapshots`. */
  readonly snapshots?: {
    /** Every snapshot, complete or not. */
    list(): Promise<readonly SnapshotId[]>;
    /** Removes a snapshot, complete or not. Sandboxes made from it live on. Safe to repeat. */
    remove(id: SnapshotId): Promise<void>;
  };
  /**
   * Root file systems of templates that the server builds, with their files as the guests see them, setuid programs and
   * owners included. Their sandboxes have the directories that this backend mounts on, whatever is in the image.
   */
  readonly images?:
    | {
        /**
         * Unpacks an image with all its layers: all or nothing. No name in a layer reaches out of the root, and devices
         * are left out, or are empty files.
         * @throws SandboxError `image_invalid`, `image_too_large`, the signal's reason, or `template_unusable` when this
         * host lacks a program for it.
         */
        unpack(id: ImageId, source: ImageSource, signal: AbortSignal): Promise<void>;
        /** Every image, complete or not. */
        list(): Promise<readonly ImageId[]>;
        /**
         * Removes an image, complete or not. Sandboxes, snapshots and images made from it live on. Safe to repeat.
         */
        remove(id: ImageId): Promise<void>;
        /** Bytes that it occupies, without those of the image that it was made from. @throws SandboxError not_found */
        usage(id: ImageId): Promise<number>;
        /**
         * Packs all files of an image as its sandboxes see them, those of lower images included, into a tar archive: as
         * a layer of an OCI image that `unpack` makes the same files of, with owners, modes, times and links. Equal files
         * of equal times make equal archives. Absent = this backend cannot. A reader that stops early ends it.
         * @throws SandboxError not_found, invalid_argument for a snapshot of another image, failed_precondition when this
         * host lacks a program for it, or the signal's reason.
         */
        readonly pack?: ((source: PackSource, signal: AbortSignal) => AsyncIterable<Uint8Array>) | undefined;
      }
    | undefined;
  /**
   * Volumes: directories that sandboxes share, and that outlive them. `provision` refuses a mount that it cannot make:
   * not_found, or invalid_argument for an impossible path.
   */
  readonly volumes?: {
    /** All or nothing. @throws SandboxError already_exists, resource_exhausted */
    make(spec: VolumeSpec): Promise<void>;
    /** Every volume, complete or not. */
    list(): Promise<readonly VolumeId[]>;
    /** Removes an unused volume with its contents. Safe to repeat. */
    remove(id: VolumeId): Promise<void>;
    /** Bytes that it occupies. @throws SandboxError not_found */
    usage(id: VolumeId): Promise<number>;
  };
}

/**
 * Reason why a sandbox ended by itself: the kernel killed its first process for lack of memory, its backend ended it
 * for exceeding its disk limit, or another.
 */
export type Loss = "out of memory" | "out of disk" | "backend lost";

/** One sandbox, as its backend sees it. */
export interface Sandbox {
  readonly id: SandboxId;
  /**
   * @throws SandboxError invalid_argument `cwd '<path>' does not exist`, unauthenticated for an unknown user. A missing
   * program is no error: the process ends with exit code 127.
   */
  spawn(command: Command): Promise<Process>;
  /** The account of that name, or the default one. @throws SandboxError not_found `unknown user <name>`. */
  user(name?: string): Promise<User>;
  readonly files: Files;
  /**
   * A TCP stream to a port inside, on any of its loopback addresses.
   * @throws SandboxError failed_precondition when nothing listens there.
   */
  dial(port: number, signal: AbortSignal): Promise<Duplex>;
  stats(): Promise<Stats>;
  /**
   * Seconds of processor time that all of its processes have used, also those that have ended, as far as is known at
   * once: read with each measurement and before the processes are ended. `stopping.start` may begin it anew. Absent =
   * this backend cannot tell.
   */
  readonly cpuSeconds?: number | undefined;
  /** Ends every process and frees everything, from every incomplete state. Safe to repeat. */
  destroy(): Promise<void>;
  /**
   * Resolves when the whole sandbox ended by itself: nothing works any more, and `destroy` still has to be called. Not
   * for a single process, nor after `destroy`; never rejects. Absent = this backend cannot tell.
   */
  readonly lost?: Promise<Loss>;
  /**
   * What the sandbox lacked, as far as the kernel counts it. `watch` calls back for each shortage that is found from then
   * on: when one of its processes fails, by `stats`, or by `since`. `since` returns the last one after a moment of
   * `performance.now()`. Absent = this backend cannot tell.
   */
  readonly shortages?: {
    watch(onShortage: (shortage: ResourceShortage) => void): void;
    since(moment: number): ResourceShortage | undefined;
  };
  // Facets: absent = this backend cannot. Callers test for presence; nothing throws "not implemented".
  /**
   * An IPv4 address of the host that is the sandbox's loopback address, too, for clients that can only connect to
   * addresses. Absent for a sandbox with its own network.
   */
  readonly address?: string;
  readonly pausing?: { pause(): Promise<void>; resume(): Promise<void> };
  /**
   * `stop` ends all processes, also of a paused sandbox, and keeps the files. They outlive the server and the host
   * wherever sandboxes of this backend do. Until `start`, nothing works but `stats`, `snapshots`, `adoption` and
   * `destroy`. `start` rebuilds the sandbox around its files by the given specification; when it rejects, the sandbox
   * is stopped. Both are safe to repeat; `start` does not change a running one.
   */
  readonly stopping?: { stop(): Promise<void>; start(spec: SandboxSpec, signal: AbortSignal): Promise<void> };
  /**
   * Keeps the files as of one moment under an id that the server chose, all or nothing. The sandbox is frozen
   * meanwhile; afterwards it goes on, or stays paused.
   */
  readonly snapshots?: { take(id: SnapshotId): Promise<void> };
  /**
   * Ends all processes and makes an image of the files, without those of volumes: all or nothing. Takes no longer for
   * larger files where the backend can. Afterwards only `destroy` works; when it rejects, the sandbox is as it was, or
   * stopped. Only for a sandbox with an image and without a snapshot, of a backend with `images`.
   * @throws SandboxError `image_too_deep` when the new image would stand on more others than can be mounted: at least 64
   * can.
   */
  readonly committing?: { commit(id: ImageId): Promise<void> };
  /**
   * For sandboxes that outlive the server: processes that were running when this server adopted the sandbox, including
   * those that ended meanwhile. The plugin that knows a process's label takes it.
   */
  readonly adoption?: { processes(): Promise<readonly AdoptedProcess[]> };
  /**
   * Replaces all limits at once without a restart; absent = the backend's default. All or nothing.
   * @throws SandboxError failed_precondition when it uses more than that, or cannot change that limit.
   */
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  /**
   * Enforces rules for outgoing connections. `restrict` replaces them at once, for open connections too. Safe to
   * repeat.
   * @throws SandboxError invalid_argument for a kind of destination that the backend does not support.
   */
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
}

/** The backends of a server: a backend plugin adds itself here. */
export interface Backends {
  /** @throws SandboxError already_exists for a second backend of the same name. */
  add(backend: SandboxBackend): void;
  /** @throws SandboxError not_found */
  get(name: string): SandboxBackend;
  /** The one of templates that name none. @throws SandboxError failed_precondition before the server has started. */
  default(): SandboxBackend;
  all(): readonly SandboxBackend[];
}

export const Backends = createToken<Backends>("backends");
