import { Counter, Gauge, type Registry } from "prom-client";
import type { CommandOutcome } from "./commands.js";

const OUTCOMES: readonly CommandOutcome[] = ["ok", "error", "killed"];

/** Counts commands: each one that is started is finished once, with one outcome. */
export class CommandMetrics {
  readonly #started: Counter;
  readonly #finished: Counter<"status">;
  readonly #active: Gauge;

  constructor(registry: Registry) {
    const registers = [registry];
    this.#started = new Counter({
      name: "coppice_commands_started_total",
      help: "Commands started.",
      registers,
    });
    this.#finished = new Counter({
      name: "coppice_commands_finished_total",
      help: "Commands ended: exit code 0 (ok), another end of their own (error), or killed.",
      labelNames: ["status"],
      registers,
    });
    this.#active = new Gauge({ name: "coppice_commands_active", help: "Commands running now.", registers });
    for (const status of OUTCOMES) this.#finished.inc({ status }, 0);
  }

  started(): void {
    this.#started.inc();
    this.#active.inc();
  }

  finished(outcome: CommandOutcome): void {
    this.#finished.inc({ status: outcome });
    this.#active.dec();
  }
}
