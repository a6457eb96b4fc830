import type { BackendName } from "../../harness/server/start-full-server.js";
import type { BenchedServer } from "./benched-server.js";
import type { WatchedProcess } from "./watched-process.js";

/** What one run may say about itself. */
export interface Run {
  /** Where somebody nearer held the clock: milliseconds. */
  readonly tookMs?: number;
  /** Clean-up that is not part of what is measured. */
  readonly undo?: () => Promise<void>;
}

/** One thing that is done again and again. */
export interface Contender {
  readonly label: string;
  /** How many runs go on at the same time; 1 when absent. */
  readonly atOnce?: number;
  /** Payload of one run, for a throughput in MiB/s. */
  readonly bytes?: number;
  /** Whose processor time and memory are told; its runs go on one at a time. */
  readonly watched?: WatchedProcess;
  readonly once: () => Promise<Run | void>;
}

/** Contenders, and the least that any of them could possibly take, measured in turns with them. */
export interface Comparison {
  readonly title: string;
  readonly floor: Contender;
  readonly contenders: readonly Contender[];
}

/** What was measured while the benchmark was prepared. */
export interface Reading {
  readonly title: string;
  readonly unit: "MiB" | "ms";
  /** What the first row is to the others: the least that they could be, or all of them together. `floor` when absent. */
  readonly first?: "floor" | "whole";
  readonly rows: readonly { readonly label: string; readonly samples: readonly number[] }[];
}

/** Everything that was opened for a benchmark is closed by `close`. */
export interface PreparedBenchmark {
  readonly comparisons: readonly Comparison[];
  readonly readings?: readonly Reading[];
  /** What was measured once and has nothing to be compared with, as text. */
  readonly notes?: readonly string[];
  close(): Promise<void>;
}

export interface BenchmarkOptions {
  readonly backend: BackendName;
  /** What a line of the report may take, for what is done before. */
  readonly seconds: number;
  /** How many there are of those that do nothing, or are asked for at once. */
  readonly sandboxes: number;
  /** The size of a large file, and the most that anything else carries at once. */
  readonly largeBytes: number;
}

export type Benchmark = (server: BenchedServer, options: BenchmarkOptions) => Promise<PreparedBenchmark>;
