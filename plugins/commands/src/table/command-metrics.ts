import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import type { CommandOutcome } from "../contract/commands.js";

const OUTCOMES: readonly CommandOutcome[] = ["ok", "error", "killed"];

export type CommandMetrics = ReturnType<typeof commandMetrics>;

/** Counts commands: each started one is finished once, with one outcome. */
export function commandMetrics(registry: Registry) {
  const registers = [registry];
  const started = new Counter({
    name: "coppice_commands_started_total",
    help: "Commands started.",
    registers,
  });
  const finished = new Counter({
    name: "coppice_commands_finished_total",
    help: "Commands ended: exit code 0 (ok), another end of their own (error), or killed.",
    labelNames: ["status"],
    registers,
  });
  const active = new Gauge({ name: "coppice_commands_active", help: "Commands running now.", registers });
  const startSeconds = new Histogram({
    name: "coppice_commands_start_seconds",
    help: "Time from asking for a command to its process.",
    buckets: [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5],
    registers,
  });
  for (const status of OUTCOMES) finished.inc({ status }, 0);
  return {
    started(): void {
      started.inc();
      active.inc();
    },
    startTook: (seconds: number) => startSeconds.observe(seconds),
    finished(status: CommandOutcome): void {
      finished.inc({ status });
      active.dec();
    },
  };
}
