import { Counter, Gauge, Histogram, type Registry } from "prom-client";

export type ExecutionStatus = "ok" | "error" | "interrupted" | "died";

/** Reason for a context's new kernel: a request, the old one's death, or a failed adoption. */
export type RestartCause = "asked" | "died" | "lost";

export class KernelMetrics {
  readonly #kernels: Gauge;
  readonly #executions: Counter<"status">;
  readonly #refused: Counter;
  readonly #seconds: Histogram;
  readonly #startSeconds: Histogram<"how">;
  readonly #failedStarts: Counter;
  readonly #restarts: Counter<"cause">;
  readonly #adopted: Counter;
  readonly #silent: Counter;
  readonly #zygotes: Gauge;
  readonly #failedZygotes: Counter;

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
    this.#refused = new Counter({
      name: "coppice_jupyter_executions_refused_total",
      help: "Executions that were refused because too many waited in their context.",
      registers,
    });
    this.#seconds = new Histogram({
      name: "coppice_jupyter_execution_seconds",
      help: "Time from handing code to a kernel to its end.",
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300],
      registers,
    });
    this.#startSeconds = new Histogram({
      name: "coppice_jupyter_kernel_start_seconds",
      help: "Time from asking for a kernel until it is ready, by whether it was started (cold) or forked from a zygote.",
      labelNames: ["how"],
      buckets: [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
      registers,
    });
    this.#failedStarts = new Counter({
      name: "coppice_jupyter_kernel_start_failures_total",
      help: "Kernels that did not come up.",
      registers,
    });
    this.#restarts = new Counter({
      name: "coppice_jupyter_restarts_total",
      help: "Kernels that took the place of another, by why.",
      labelNames: ["cause"],
      registers,
    });
    this.#adopted = new Counter({
      name: "coppice_jupyter_kernels_adopted_total",
      help: "Kernels of an earlier server that were taken over with their state.",
      registers,
    });
    this.#silent = new Counter({
      name: "coppice_jupyter_silent_kernels_total",
      help: "Kernels that were ended because their heartbeat had stopped.",
      registers,
    });
    this.#zygotes = new Gauge({
      name: "coppice_jupyter_zygotes",
      help: "Processes that kernels are forked from.",
      registers,
    });
    this.#failedZygotes = new Counter({
      name: "coppice_jupyter_zygote_failures_total",
      help: "Zygotes that did not come up or did not fork; kernels are started without.",
      registers,
    });
    // From the start: an alert on the first increase needs a zero before it.
    for (const status of ["ok", "error", "interrupted", "died"] satisfies ExecutionStatus[])
      this.#executions.inc({ status }, 0);
    for (const cause of ["asked", "died", "lost"] satisfies RestartCause[]) this.#restarts.inc({ cause }, 0);
  }

  zygoteStarted(): void {
    this.#zygotes.inc();
  }

  zygoteEnded(): void {
    this.#zygotes.dec();
  }

  /** A zygote failed to start or to fork: kernels are started cold instead. */
  zygoteFailed(): void {
    this.#failedZygotes.inc();
  }

  kernelStarted(how: "cold" | "forked", seconds: number): void {
    this.#kernels.inc();
    this.#startSeconds.observe({ how }, seconds);
  }

  startFailed(): void {
    this.#failedStarts.inc();
  }

  kernelAdopted(): void {
    this.#kernels.inc();
    this.#adopted.inc();
  }

  /** A kernel is ended because its heartbeat has stopped. */
  kernelSilent(): void {
    this.#silent.inc();
  }

  restarted(cause: RestartCause): void {
    this.#restarts.inc({ cause });
  }

  kernelEnded(): void {
    this.#kernels.dec();
  }

  /** An execution found no place in its context's queue. */
  executionRefused(): void {
    this.#refused.inc();
  }

  executionEnded(status: ExecutionStatus, seconds: number): void {
    this.#executions.inc({ status });
    this.#seconds.observe(seconds);
  }
}
