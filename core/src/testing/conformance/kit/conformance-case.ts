import type { Limits, Sandbox, SandboxBackend, SandboxSpec } from "../../../sandbox/contract/backend.js";
import type { ConformanceContext } from "./conformance-context.js";

/** What a case is about. */
export type ConformanceGroup =
  | "provision"
  | "process"
  | "terminal"
  | "files"
  | "network"
  | "facets"
  | "isolation";

/** Optional parts of a Sandbox, and `volumes` of its backend. */
export type Facet = "pausing" | "stopping" | "snapshots" | "resizing" | "networking" | "volumes" | "lost";

/**
 * What sandboxes of one backend can do and those of another cannot, without a part of its own:
 * `terminals` commands get the terminal that they ask for; `watching` files can be watched; `metadata` files
 * keep it; `accounts` the users of a sandbox are different accounts.
 */
export type Ability = "terminals" | "watching" | "metadata" | "accounts";

/** What a backend has to be, or its sandboxes have to have, for a case to mean something. */
export type Need =
  | "isolation"
  | Facet
  | Ability
  /** A program on the PATH inside. */
  | { readonly program: string }
  /** A limit that is enforced on this host. */
  | { readonly limit: keyof Limits }
  /** The subject says where the files of sandboxes are kept. */
  | "stateDirectory"
  /** The subject says that the kernel knows the users of each sandbox apart. */
  | "ownUsers"
  /** The subject names a server outside. */
  | "outside";

/** One promise of every backend: plain data, so that node:test and the command line run the same. */
export interface ConformanceCase {
  /** A sentence whose subject is the sandbox or its backend; unique. */
  readonly name: string;
  readonly group: ConformanceGroup;
  /** Unmet, the case is reported as skipped, with the reason. */
  readonly needs?: readonly Need[];
  /** Throws when the promise is broken. The context is made for this run alone. */
  run(context: ConformanceContext): Promise<void>;
}

/** A backend under test. Disposing of it gives back what the backend itself holds. */
export interface ConformanceSubject extends AsyncDisposable {
  readonly backend: SandboxBackend;
  /** What sandboxes are made with; template `base` without limits when absent. */
  readonly specification?: Partial<Omit<SandboxSpec, "id">>;
  /** The facets that its sandboxes are meant to have; not compared when absent. */
  readonly facets?: readonly Facet[];
  /** The abilities that its sandboxes are meant to have; not compared when absent. */
  readonly abilities?: readonly Ability[];
  /** The limits that are enforced on this host; `processes` and `memoryMiB` when absent. */
  readonly limits?: readonly (keyof Limits)[];
  /** Absolute path of the directory on this host below which the files of sandboxes are kept. */
  readonly stateDirectory?: string;
  /** On this host the kernel does not count the users of one sandbox with those of another, or with the host's. */
  readonly hasOwnUsers?: boolean;
  /**
   * A TCP server outside of this host, or of what counts for it, that sends back what it gets. Sandboxes with
   * internet access reach it at both addresses.
   */
  readonly outside?: { readonly addresses: readonly [string, string]; readonly port: number };
  /** Ends a sandbox as a whole behind its backend's back, as a fault of this host would. */
  lose?(sandbox: Sandbox): Promise<void>;
  /**
   * What of any sandbox is still there, in words: datasets, directories, addresses. Asked after each
   * case, when no sandbox is alive. The kit itself looks for processes, mounts and descriptors.
   */
  leaks?(): Promise<readonly string[]>;
}

/** Thrown by a case that cannot be tried here. */
export class CaseSkipped extends Error {
  override readonly name = "CaseSkipped";
}
