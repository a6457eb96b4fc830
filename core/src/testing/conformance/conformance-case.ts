import type { SandboxBackend, SandboxSpec } from "../../sandbox/backend.js";
import type { ConformanceContext } from "./conformance-context.js";

/** What a case is about. */
export type ConformanceGroup = "provision" | "process" | "files" | "network" | "facets" | "isolation";

/** Optional parts of a Sandbox. */
export type Facet = "pausing" | "snapshots" | "resizing";

/** What a backend has to be, or its sandboxes have to have, for a case to mean something. */
export type Need = "isolation" | Facet;

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
