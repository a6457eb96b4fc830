import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import { END_REASONS } from "./describe-end.js";
import type { EndReason } from "./live-sandbox.js";
import type { ReadinessProbe } from "./readiness-probe.js";

export type PauseTrigger = "request" | "timeout";

/** Cause of a resumption: a client's request, or traffic. */
export type ResumeTrigger = "request" | "traffic";

export type SandboxMetrics = ReturnType<typeof sandboxMetrics>;

/** Registers the metrics `coppice_sandboxes_…`. @param count called at each scrape: number of sandboxes in a state. */
export function sandboxMetrics(registry: Registry, count: (state: "running" | "paused") => number) {
  const registers = [registry];
  const counter = <L extends string>(name: string, help: string, ...labelNames: L[]): Counter<L> =>
    new Counter({ name, help, labelNames, registers });
  const gauge = (name: string, help: string, state: "running" | "paused"): Gauge =>
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(count(state));
      },
    });
  gauge("coppice_sandboxes_running", "Sandboxes that serve now", "running");
  gauge("coppice_sandboxes_paused", "Sandboxes that are paused now", "paused");
  const pauses = counter("coppice_sandboxes_pauses_total", "Pauses, by what asked for them", "trigger");
  const pauseFailures = counter(
    "coppice_sandboxes_pause_failures_total",
    "Pauses that failed and left the sandbox running",
  );
  const resumptions = counter(
    "coppice_sandboxes_resumptions_total",
    "Resumptions of paused sandboxes, by what asked for them",
    "trigger",
  );
  const created = counter("coppice_sandboxes_created_total", "Sandboxes made");
  const createFailures = counter(
    "coppice_sandboxes_create_failures_total",
    "Sandboxes that could not be made, or were given up while being made",
  );
  const createSeconds = new Histogram({
    name: "coppice_sandboxes_create_seconds",
    help: "Time from asking for a sandbox to having it",
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    registers,
  });
  const ended = counter("coppice_sandboxes_ended_total", "Sandboxes that are gone, by reason", "reason");
  const destroyFailures = counter(
    "coppice_sandboxes_destroy_failures_total",
    "Attempts to destroy a sandbox that failed",
  );
  const snapshotSeconds = new Histogram({
    name: "coppice_sandboxes_snapshot_seconds",
    help: "Time that taking a snapshot took, in which its sandbox stood still",
    buckets: [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    registers,
  });
  const readySeconds = new Histogram({
    name: "coppice_sandboxes_ready_seconds",
    help: "Time from having a sandbox to the success of its readiness probe, by the type of that",
    labelNames: ["probe"],
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300],
    registers,
  });
  const notReady = counter(
    "coppice_sandboxes_not_ready_total",
    "Sandboxes that were not ready in time and were removed, by the type of their readiness probe",
    "probe",
  );
  const eventsDropped = counter(
    "coppice_sandboxes_events_dropped_total",
    "Events that were dropped because too many waited for who could not take them",
  );
  // From the start: an alert on the first increase needs a zero before it.
  for (const trigger of ["request", "timeout"] satisfies PauseTrigger[]) pauses.inc({ trigger }, 0);
  for (const trigger of ["request", "traffic"] satisfies ResumeTrigger[]) resumptions.inc({ trigger }, 0);
  for (const reason of Object.keys(END_REASONS)) ended.inc({ reason }, 0);
  for (const probe of ["tcp", "http", "shell"]) {
    readySeconds.zero({ probe });
    notReady.inc({ probe }, 0);
  }
  return {
    created(tookMs: number) {
      created.inc();
      createSeconds.observe(tookMs / 1000);
    },
    createFailed: () => createFailures.inc(),
    ended: (reason: EndReason) => ended.inc({ reason }),
    destroyFailed: () => destroyFailures.inc(),
    paused: (trigger: PauseTrigger) => pauses.inc({ trigger }),
    pauseFailed: () => pauseFailures.inc(),
    resumed: (trigger: ResumeTrigger) => resumptions.inc({ trigger }),
    snapshotTaken: (tookMs: number) => snapshotSeconds.observe(tookMs / 1000),
    eventsDropped: (dropped: number) => eventsDropped.inc(dropped),
    ready: (probe: ReadinessProbe["type"], tookMs: number) => readySeconds.observe({ probe }, tookMs / 1000),
    notReady: (probe: ReadinessProbe["type"]) => notReady.inc({ probe }),
  };
}
