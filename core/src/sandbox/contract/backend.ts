import type { Duplex } from "node:stream";
import { createToken } from "../../kernel/token.js";
import type { EgressRules } from "./egress-rules.js";
import type { Files } from "./files.js";
import type { FullLimits } from "./full-limits.js";
import type { AdoptedProcess, Command, Process } from "./process.js";

/** `[a-z0-9]+`, chosen by the server. */
export type SandboxId = string;
/** `[a-z0-9]+`, chosen by the server. */
export type SnapshotId = string;
/** `[a-z0-9]+`, chosen by the server. */
export type VolumeId = string;

/** Resource limits of a sandbox. Absent = the backend's default; a backend enforces what it can and says so in its docs. */
export interface Limits {
  readonly cpuCount?: number | undefined;
  readonly memoryMiB?: number | undefined;
  readonly diskMiB?: number | undefined;
  readonly processes?: number | undefined;
}

/** A volume and where a sandbox has it. */
export interface Mount {
  readonly volume: VolumeId;
  /** Absolute, without `.`, `..` and empty names; not below that of another mount. Made where it is missing. */
  readonly path: string;
  readonly readOnly: boolean;
}

/** A directory to be kept for sandboxes, whose default user owns it. */
export interface VolumeSpec {
  readonly id: VolumeId;
  /** Limit of its contents, where the backend can enforce one. */
  readonly sizeMiB: number;
}

/** A sandbox that is to be provisioned. */
export interface SandboxSpec {
  readonly id: SandboxId;
  /** Name of a template that the server's configuration lists. */
  readonly template: string;
  readonly limits: Limits;
  /** False: no route out of the sandbox, except to what `egress` allows. */
  readonly allowInternetAccess: boolean;
  /**
   * Rules for connections to the outside, `allowInternetAccess: false` included; absent = no rules. A backend that
   * cannot keep to rules ignores them and makes sandboxes without `networking`, which the server then does not use.
   */
  readonly egress?: EgressRules | undefined;
  /** Begin with the files of this snapshot, which was taken of a sandbox of that template. */
  readonly snapshot?: SnapshotId | undefined;
  /** Volumes of this backend that it has from its first process on; only of one that has `volumes`. */
  readonly mounts?: readonly Mount[] | undefined;
}

/** A user account inside a sandbox. */
export interface User {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
  /** Absolute path inside the sandbox. */
  readonly home: string;
  readonly shell: string;
}

/** Current resource usage of a sandbox. Bytes, unless the name says otherwise. */
export interface Stats {
  readonly cpuCount: number;
  /** Of all its CPUs together, 0 to 100 × cpuCount. */
  readonly cpuUsedPercent: number;
  readonly memoryUsedBytes: number;
  readonly memoryTotalBytes: number;
  readonly memoryCacheBytes: number;
  readonly diskUsedBytes: number;
  readonly diskTotalBytes: number;
}

/** Makes sandboxes of one kind. */
export interface SandboxBackend {
  readonly name: string;
  /** True when a sandbox cannot reach the host's files, processes and network. */
  readonly isolated: boolean;
  /** Limits of a sandbox for which neither its creator nor its template sets any; absent = they differ, or are unknown. */
  readonly defaultLimits?: FullLimits;
  /** Names of the templates that it has; absent = that shows only when a sandbox is made. */
  readonly templates?: readonly string[];
  /** True: none of its sandboxes reaches anything outside, whatever is asked for. */
  readonly offline?: boolean;
  /**
   * Rejects with every reason why this host cannot run it: then another backend may be used in its place, as long as
   * the error is no SandboxError `unavailable` (busy) or `invalid_argument` (misconfigured).
   */
  check(): Promise<void>;
  /** All or nothing: when it rejects, nothing of the sandbox is left. */
  provision(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox>;
  /**
   * The sandboxes that outlived the last server: each one returned works, or was stopped. Those that cannot be used
   * again are destroyed by then, whole.
   */
  recover(): Promise<readonly Sandbox[]>;
  /** Of a backend whose sandboxes have the facet `snapshots`: what it keeps, which outlives them. */
  readonly snapshots?: {
    /** Every snapshot there is, whether its making was finished or not. */
    list(): Promise<readonly SnapshotId[]>;
    /** Gives one up, whatever there is of it. Sandboxes that were made from it live on. Safe to repeat. */
    remove(id: SnapshotId): Promise<void>;
  };
  /**
   * Keeps directories that sandboxes share, as long as each of them says, and that outlive them. `provision`
   * refuses a mount that it cannot make: not_found, or invalid_argument for a path where none can be.
   */
  readonly volumes?: {
    /** All or nothing. @throws SandboxError already_exists, resource_exhausted */
    make(spec: VolumeSpec): Promise<void>;
    /** Every volume there is, whether its making was finished or not. */
    list(): Promise<readonly VolumeId[]>;
    /** Removes one that no sandbox has any more, with what is in it. Safe to repeat. */
    remove(id: VolumeId): Promise<void>;
    /** Bytes that it takes up. @throws SandboxError not_found */
    usage(id: VolumeId): Promise<number>;
  };
}

/**
 * Why a sandbox ended by itself: the kernel took its first process for want of memory, its backend ended it because it
 * used more disk than it may, or anything else.
 */
export type Loss = "out of memory" | "out of disk" | "backend lost";

/** One sandbox, as its backend sees it. */
export interface Sandbox {
  readonly id: SandboxId;
  /**
   * @throws SandboxError invalid_argument `cwd '<path>' does not exist`, unauthenticated for an unknown
   * user. A program that does not exist is no error: the process ends with exit code 127.
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
  /** Ends every process and frees everything, from every half-built state. Safe to repeat. */
  destroy(): Promise<void>;
  /**
   * Resolves when it has ended by itself, as a whole: nothing that is asked of it works any more, and `destroy`
   * still has to be called. Not for a process that ends, nor for what `destroy` does; never rejects. Absent = this
   * backend cannot tell.
   */
  readonly lost?: Promise<Loss>;
  // Facets: absent = this backend cannot. Callers test for presence; nothing throws "not implemented".
  /**
   * An IPv4 address of the host that is the loopback address of the sandbox, too: for what can connect to nothing but
   * addresses. Whatever has a network of its own has none.
   */
  readonly address?: string;
  readonly pausing?: { pause(): Promise<void>; resume(): Promise<void> };
  /**
   * Ends all processes and keeps the files, so that they outlive the server and the host wherever sandboxes of this
   * backend outlive a server. Until it is started nothing works but `stats`, `snapshots`, `adoption` and `destroy`.
   * `stop` works on a paused one, too. `start` makes it anew around its files, by the specification that holds now; when
   * it rejects, the sandbox is stopped. Both are safe to repeat: of one that runs, `start` changes nothing.
   */
  readonly stopping?: { stop(): Promise<void>; start(spec: SandboxSpec, signal: AbortSignal): Promise<void> };
  /**
   * Keeps the files as they are at one moment under an id that the server chose, all or nothing. The sandbox
   * stands still meanwhile and goes on, or stays paused, afterwards.
   */
  readonly snapshots?: { take(id: SnapshotId): Promise<void> };
  /**
   * Of a backend whose sandboxes outlive the server: what already ran when this server took the sandbox over,
   * those that ended meanwhile included. Each goes on where it was; whoever knows its label takes it.
   */
  readonly adoption?: { processes(): Promise<readonly AdoptedProcess[]> };
  /**
   * Changes all its limits at once, while it goes on; absent = the backend's default. All or nothing.
   * @throws SandboxError failed_precondition when it uses more than that, or cannot change that one.
   */
  readonly resizing?: { resize(limits: Limits): Promise<void> };
  /**
   * Keeps to rules about what is reached outside. `restrict` replaces those that hold, at once and for open
   * connections too, and may be repeated.
   * @throws SandboxError invalid_argument for a destination of a kind that the backend does not know.
   */
  readonly networking?: { restrict(rules: EgressRules): Promise<void> };
}

/** The backends of a server: a backend plugin adds itself here. */
export interface Backends {
  /** @throws SandboxError already_exists for a second backend of the same name. */
  add(backend: SandboxBackend): void;
  /** @throws SandboxError not_found */
  get(name: string): SandboxBackend;
  all(): readonly SandboxBackend[];
}

export const Backends = createToken<Backends>("backends");
