import { Counter, Gauge, Histogram, type Registry } from "prom-client";

/** How an execution ended. */
export type ExecutionStatus = "ok" | "error" | "interrupted" | "died";

/** The series of this plugin. */
export class KernelMetrics {
  readonly #kernels: Gauge;
  readonly #executions: Counter<"status">;
  readonly #seconds: Histogram;

  constructor(registry: Registry) {
    const registers = [registry];
    this.#kernels = new Gauge({
      name: "coppice_jupyter_kernels",
      help: "Kernels that are alive.",
      registers,
    });
    this.#executions = new Counter({
      name: "coppice_jupyter_executions_total",
      help: "Executions that ended, by how they ended.",
      labelNames: ["status"],
      registers,
    });
    this.#seconds = new Histogram({
      name: "coppice_jupyter_execution_seconds",
      help: "Time from handing code to a kernel to its end.",
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300],
      registers,
    });
  }

  kernelStarted(): void {
    this.#kernels.inc();
  }

  kernelEnded(): void {
    this.#kernels.dec();
  }

  executionEnded(status: ExecutionStatus, seconds: number): void {
    this.#executions.inc({ status });
    this.#seconds.observe(seconds);
  }
}
