import type { BackendName } from "@coppice/test/harness/server/start-full-server.js";
import type { BenchedServer } from "./benched-server.js";
import type { NamedRow } from "./compared-row.js";
import type { WatchedProcess } from "./watched-process.js";

/** Optional measurements of one run. */
export interface Run {
  /** Duration in milliseconds, where a client closer to the work measured it. */
  readonly tookMs?: number;
  /** Clean-up that is not part of what is measured. */
  readonly undo?: () => Promise<void>;
}

/** An operation that is measured again and again. */
export interface Contender {
  readonly label: string;
  /** How many runs go on at the same time; 1 when absent. */
  readonly atOnce?: number;
  /** Payload of one run, for a throughput in MiB/s. */
  readonly bytes?: number;
  /** Process whose processor time and memory are reported; its runs take turns. */
  readonly watched?: WatchedProcess;
  readonly once: () => Promise<Run | void>;
}

/** Contenders, and a floor: the least time that any of them could take, measured in turns with them. */
export interface Comparison {
  readonly title: string;
  readonly floor: Contender;
  readonly contenders: readonly Contender[];
}

/** Measurements from the preparation. */
export interface Reading {
  readonly title: string;
  readonly unit: "MiB" | "ms";
  /** Relation of the first row to the others: their lower bound, or their sum. `floor` when absent. */
  readonly first?: "floor" | "whole";
  readonly rows: readonly { readonly label: string; readonly samples: readonly number[] }[];
}

/** Everything that was opened for a benchmark is closed by `close`. */
export interface PreparedBenchmark {
  readonly comparisons: readonly Comparison[];
  readonly readings?: readonly Reading[];
  /** Figures beside others of the same run, which `against` names; `--record` keeps them. */
  readonly rows?: readonly NamedRow[];
  /** Single measurements without a comparison, as text. */
  readonly notes?: readonly string[];
  close(): Promise<void>;
}

export interface BenchmarkOptions {
  readonly backend: BackendName;
  /** Time limit of a report line, for its preparation. */
  readonly seconds: number;
  /** Number of idle sandboxes, or of creations at the same moment. */
  readonly sandboxes: number;
  /** Number of simulated servers. */
  readonly servers: number;
  /** Number of idle WebSockets. */
  readonly connections: number;
  /** Size of a large file, and limit of every other payload. */
  readonly largeBytes: number;
}

export type Benchmark = (server: BenchedServer, options: BenchmarkOptions) => Promise<PreparedBenchmark>;
