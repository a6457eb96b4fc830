import type { Limits, Sandbox, SandboxBackend, SandboxSpec } from "@coppice/core/backend";
import type { ConformanceContext } from "./conformance-context.js";

/** The part of the contract that a case belongs to. */
export type ConformanceGroup =
  | "provision"
  | "process"
  | "terminal"
  | "files"
  | "network"
  | "facets"
  | "isolation";

/** Optional parts of a Sandbox, and `volumes` and `images` of its backend. */
export type Facet =
  | "pausing"
  | "stopping"
  | "snapshots"
  | "committing"
  | "resizing"
  | "networking"
  | "volumes"
  | "images"
  | "lost";

/**
 * Abilities that differ between backends without being a facet: `terminals` commands get the terminal that they ask
 * for; `watching` files can be watched; `metadata` files keep it; `accounts` the users of a sandbox are different
 * accounts.
 */
export type Ability = "terminals" | "watching" | "metadata" | "accounts";

/** Precondition of a case: a property of the backend or of its sandboxes. */
export type Need =
  | "isolation"
  | Facet
  | Ability
  /** A program on the PATH inside. */
  | { readonly program: string }
  /** A limit that is enforced on this host. */
  | { readonly limit: keyof Limits }
  /** The subject names the directory of sandboxes' files. */
  | "stateDirectory"
  /** The subject has separate users for each sandbox. */
  | "ownUsers"
  /** The subject names an outside server. */
  | "outside";

/** One promise of every backend, as plain data for both node:test and the command line. */
export interface ConformanceCase {
  /** A sentence whose subject is the sandbox or its backend; unique. */
  readonly name: string;
  readonly group: ConformanceGroup;
  /** With an unmet need the case is skipped, with the reason. */
  readonly needs?: readonly Need[];
  /** Throws when the promise is broken. The context is made for this run alone. */
  run(context: ConformanceContext): Promise<void>;
}

/** A backend under test. Disposing of it releases the backend's own resources. */
export interface ConformanceSubject extends AsyncDisposable {
  readonly backend: SandboxBackend;
  /** Specification of sandboxes; template `base` without limits when absent. */
  readonly specification?: Partial<Omit<SandboxSpec, "id">>;
  /** Facets that its sandboxes should have; not compared when absent. */
  readonly facets?: readonly Facet[];
  /** Abilities that its sandboxes should have; not compared when absent. */
  readonly abilities?: readonly Ability[];
  /** Limits enforced on this host; `processes` and `memoryMiB` when absent. */
  readonly limits?: readonly (keyof Limits)[];
  /** Absolute host directory below which the files of sandboxes are stored. */
  readonly stateDirectory?: string;
  /** The kernel counts users of one sandbox apart from those of others and of the host. */
  readonly hasOwnUsers?: boolean;
  /**
   * A TCP echo server outside of this host, or of what stands for it. Sandboxes with internet access reach it at both
   * addresses.
   */
  readonly outside?: { readonly addresses: readonly [string, string]; readonly port: number };
  /** Ends a sandbox behind its backend's back, as a fault of this host would. */
  lose?(sandbox: Sandbox): Promise<void>;
  /**
   * Describes remains of sandboxes: datasets, directories, addresses. Called after each case, when no sandbox is alive.
   * The kit itself looks for processes, mounts and descriptors.
   */
  leaks?(): Promise<readonly string[]>;
}

/** Thrown by a case that cannot run here. */
export class CaseSkipped extends Error {
  override readonly name = "CaseSkipped";
}
