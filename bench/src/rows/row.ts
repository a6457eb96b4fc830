import type { BenchmarkOptions } from "../kit/benchmark.js";
import type { ServerClient } from "../kit/server-client.js";

/** A figure that is measured on our server and on a peer in turns. */
export interface Row {
  readonly label: string;
  readonly unit: "ms" | "per s" | "MiB/s";
  /** Opens what the measurements need, on either server. */
  prepare(server: ServerClient, options: RowOptions): Promise<PreparedRow>;
}

export type RowOptions = Omit<BenchmarkOptions, "backend">;

export interface PreparedRow {
  /** Takes one measurement, of about `seconds` of the options where one operation is shorter. */
  measure(): Promise<number>;
  close(): Promise<void>;
}
