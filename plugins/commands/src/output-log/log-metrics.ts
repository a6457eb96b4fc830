import { Counter, Gauge, type Registry } from "prom-client";

/** Counts what the output log writes, keeps and loses. */
export class LogMetrics {
  readonly #written: Counter;
  readonly #dropped: Counter;
  readonly #failures: Counter;
  readonly #removed: Counter;

  /** @param keptBytes size of all segment files. */
  constructor(registry: Registry, keptBytes: () => number) {
    const registers = [registry];
    const counter = (name: string, help: string): Counter =>
      new Counter({ name: `coppice_commands_log_${name}_total`, help, registers });
    this.#written = counter("written_bytes", "Bytes of output written to the log.");
    this.#dropped = counter("dropped_bytes", "Bytes of output that the log could not take.");
    this.#failures = counter("failures", "Times that the log stopped to be written: disk full, or failing.");
    this.#removed = counter("removed_bytes", "Bytes of segment files removed by a limit.");
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
