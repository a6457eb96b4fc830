import { Counter, Gauge, type Registry } from "prom-client";

export class LogMetrics {
  readonly #written: Counter;
  readonly #dropped: Counter;
  readonly #failures: Counter;
  readonly #removed: Counter;

  /** @param keptBytes size of all segment files. */
  constructor(registry: Registry, keptBytes: () => number) {
    const registers = [registry];
    this.#written = new Counter({
      name: "coppice_commands_log_written_bytes_total",
      help: "Bytes of output written to the log.",
      registers,
    });
    this.#dropped = new Counter({
      name: "coppice_commands_log_dropped_bytes_total",
      help: "Bytes of output that the log could not take.",
      registers,
    });
    this.#failures = new Counter({
      name: "coppice_commands_log_failures_total",
      help: "Times that the log stopped to be written: disk full, or failing.",
      registers,
    });
    this.#removed = new Counter({
      name: "coppice_commands_log_removed_bytes_total",
      help: "Bytes of segment files removed by a limit.",
      registers,
    });
    new Gauge({
      name: "coppice_commands_log_bytes",
      help: "Size of the log of all commands on disk.",
      registers,
      collect() {
        this.set(keptBytes());
      },
    });
  }

  written(bytes: number): void {
    this.#written.inc(bytes);
  }

  dropped(bytes: number): void {
    this.#dropped.inc(bytes);
  }

  failed(): void {
    this.#failures.inc();
  }

  removed(bytes: number): void {
    this.#removed.inc(bytes);
  }
}
