import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import { END_REASONS } from "./describe-end.js";

export type PauseTrigger = "request" | "timeout";

/** Cause of a resumption: a client's request, or traffic. */
export type ResumeTrigger = "request" | "traffic";

export type SandboxMetrics = ReturnType<typeof sandboxMetrics>;

/** Registers the metrics `coppice_sandboxes_…`. @param count called at each scrape: number of sandboxes in a state. */
export function sandboxMetrics(registry: Registry, count: (state: "running" | "paused") => number) {
  const registers = [registry];
  const counter = <L extends string>(metric: { name: string; help: string; labelNames?: L[] }): Counter<L> =>
    new Counter({ ...metric, registers });
  const gauge = (metric: { name: string; help: string }, state: "running" | "paused"): Gauge =>
    new Gauge({
      ...metric,
      registers,
      collect() {
        this.set(count(state));
      },
    });
  gauge({ name: "coppice_sandboxes_running", help: "Sandboxes that serve now" }, "running");
  gauge({ name: "coppice_sandboxes_paused", help: "Sandboxes that are paused now" }, "paused");
  const metrics = {
    pauses: counter({
      name: "coppice_sandboxes_pauses_total",
      help: "Pauses, by what asked for them",
      labelNames: ["trigger"],
    }),
    pauseFailures: counter({
      name: "coppice_sandboxes_pause_failures_total",
      help: "Pauses that failed and left the sandbox running",
    }),
    resumptions: counter({
      name: "coppice_sandboxes_resumptions_total",
      help: "Resumptions of paused sandboxes, by what asked for them",
      labelNames: ["trigger"],
    }),
    created: counter({ name: "coppice_sandboxes_created_total", help: "Sandboxes made" }),
    createFailures: counter({
      name: "coppice_sandboxes_create_failures_total",
      help: "Sandboxes that could not be made, or were given up while being made",
    }),
    createSeconds: new Histogram({
      name: "coppice_sandboxes_create_seconds",
      help: "Time from asking for a sandbox to having it",
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers,
    }),
    ended: counter({
      name: "coppice_sandboxes_ended_total",
      help: "Sandboxes that are gone, by reason",
      labelNames: ["reason"],
    }),
    shortages: counter({
      name: "coppice_sandboxes_shortages_total",
      help: "Times that a sandbox lacked a resource, by its tenant (the first hundred, then `other`)",
      labelNames: ["tenant", "resource"],
    }),
    destroyFailures: counter({
      name: "coppice_sandboxes_destroy_failures_total",
      help: "Attempts to destroy a sandbox that failed",
    }),
    snapshotSeconds: new Histogram({
      name: "coppice_sandboxes_snapshot_seconds",
      help: "Time that taking a snapshot took, in which its sandbox stood still",
      buckets: [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
      registers,
    }),
    readySeconds: new Histogram({
      name: "coppice_sandboxes_ready_seconds",
      help: "Time from having a sandbox to the success of its readiness probe, by the type of that",
      labelNames: ["probe"],
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300],
      registers,
    }),
    notReady: counter({
      name: "coppice_sandboxes_not_ready_total",
      help: "Sandboxes that were not ready in time and were removed, by the type of their readiness probe",
      labelNames: ["probe"],
    }),
    eventsDropped: counter({
      name: "coppice_sandboxes_events_dropped_total",
      help: "Events that were dropped because too many waited for who could not take them",
    }),
  };
  // From the start: an alert on the first increase needs a zero before it.
  for (const trigger of ["request", "timeout"] satisfies PauseTrigger[]) metrics.pauses.inc({ trigger }, 0);
  for (const trigger of ["request", "traffic"] satisfies ResumeTrigger[])
    metrics.resumptions.inc({ trigger }, 0);
  for (const reason of Object.keys(END_REASONS)) metrics.ended.inc({ reason }, 0);
  for (const probe of ["tcp", "http", "shell"]) {
    metrics.readySeconds.zero({ probe });
    metrics.notReady.inc({ probe }, 0);
  }
  return metrics;
}
