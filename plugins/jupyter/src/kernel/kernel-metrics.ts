import { Counter, Gauge, Histogram, type Registry } from "prom-client";

/** Reason for a context's new kernel: a request, the old one's death, or a failed adoption. */
export type RestartCause = "asked" | "died" | "lost";

export type KernelMetrics = ReturnType<typeof kernelMetrics>;

export function kernelMetrics(registry: Registry) {
  const registers = [registry];
  const counter = (metric: { name: string; help: string }): Counter => new Counter({ ...metric, registers });
  const executions = new Counter({
    name: "coppice_jupyter_executions_total",
    help: "Executions that ended, by how they ended.",
    labelNames: ["status"],
    registers,
  });
  const restarts = new Counter({
    name: "coppice_jupyter_restarts_total",
    help: "Kernels that took the place of another, by why.",
    labelNames: ["cause"],
    registers,
  });
  // From the start: an alert on the first increase needs a zero before it.
  for (const status of ["ok", "error", "interrupted", "died"]) executions.inc({ status }, 0);
  for (const cause of ["asked", "died", "lost"] satisfies RestartCause[]) restarts.inc({ cause }, 0);
  return {
    executions,
    restarts,
    kernels: new Gauge({ name: "coppice_jupyter_kernels", help: "Kernels that are alive.", registers }),
    refused: counter({
      name: "coppice_jupyter_executions_refused_total",
      help: "Executions that were refused because too many waited in their context.",
    }),
    executionSeconds: new Histogram({
      name: "coppice_jupyter_execution_seconds",
      help: "Time from handing code to a kernel to its end.",
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300],
      registers,
    }),
    startSeconds: new Histogram({
      name: "coppice_jupyter_kernel_start_seconds",
      help: "Time from asking for a kernel until it is ready, by whether it was started (cold) or forked from a zygote.",
      labelNames: ["how"],
      buckets: [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
      registers,
    }),
    failedStarts: counter({
      name: "coppice_jupyter_kernel_start_failures_total",
      help: "Kernels that did not come up.",
    }),
    adopted: counter({
      name: "coppice_jupyter_kernels_adopted_total",
      help: "Kernels of an earlier server that were taken over with their state.",
    }),
    silent: counter({
      name: "coppice_jupyter_silent_kernels_total",
      help: "Kernels that were ended because their heartbeat had stopped.",
    }),
    zygotes: new Gauge({
      name: "coppice_jupyter_zygotes",
      help: "Processes that kernels are forked from.",
      registers,
    }),
    failedZygotes: counter({
      name: "coppice_jupyter_zygote_failures_total",
      help: "Zygotes that did not come up or did not fork; kernels are started without.",
    }),
  };
}
