import { Counter, Gauge, type Registry } from "prom-client";

export type LogMetrics = ReturnType<typeof logMetrics>;

/** @param keptBytes size of all segment files. */
export function logMetrics(registry: Registry, keptBytes: () => number) {
  const registers = [registry];
  new Gauge({
    name: "coppice_commands_log_bytes",
    help: "Size of the log of all commands on disk.",
    registers,
    collect() {
      this.set(keptBytes());
    },
  });
  return {
    written: new Counter({
      name: "coppice_commands_log_written_bytes_total",
      help: "Bytes of output written to the log.",
      registers,
    }),
    dropped: new Counter({
      name: "coppice_commands_log_dropped_bytes_total",
      help: "Bytes of output that the log could not take.",
      registers,
    }),
    failures: new Counter({
      name: "coppice_commands_log_failures_total",
      help: "Times that the log stopped to be written: disk full, or failing.",
      registers,
    }),
    removed: new Counter({
      name: "coppice_commands_log_removed_bytes_total",
      help: "Bytes of segment files removed by a limit.",
      registers,
    }),
  };
}
