import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import type { EndReason } from "./live-sandbox.js";
import type { ReadinessProbe } from "./readiness-probe.js";

export interface SandboxMetrics {
  created(tookMs: number): void;
  createFailed(): void;
  ended(reason: EndReason): void;
  destroyFailed(): void;
  paused(trigger: PauseTrigger): void;
  pauseFailed(): void;
  resumed(trigger: ResumeTrigger): void;
  snapshotTaken(tookMs: number): void;
  eventsDropped(count: number): void;
  ready(probe: ReadinessProbe["type"], tookMs: number): void;
  notReady(probe: ReadinessProbe["type"]): void;
}

export type PauseTrigger = "request" | "timeout";

/** Cause of a resumption: a client's request, or traffic. */
export type ResumeTrigger = "request" | "traffic";

/** Registers the metrics `coppice_sandboxes_…`. @param count called at each scrape: number of sandboxes in a state. */
export function sandboxMetrics(
  registry: Registry,
  count: (state: "running" | "paused") => number,
): SandboxMetrics {
  const registers = [registry];
  new Gauge({
    name: "coppice_sandboxes_running",
    help: "Sandboxes that serve now",
    registers,
    collect() {
      this.set(count("running"));
    },
  });
  new Gauge({
    name: "coppice_sandboxes_paused",
    help: "Sandboxes that are paused now",
    registers,
    collect() {
      this.set(count("paused"));
    },
  });
  const pauses = new Counter({
    name: "coppice_sandboxes_pauses_total",
    help: "Pauses, by what asked for them",
    labelNames: ["trigger"],
    registers,
  });
  const pauseFailures = new Counter({
    name: "coppice_sandboxes_pause_failures_total",
    help: "Pauses that failed and left the sandbox running",
    registers,
  });
  const resumptions = new Counter({
    name: "coppice_sandboxes_resumptions_total",
    help: "Resumptions of paused sandboxes, by what asked for them",
    labelNames: ["trigger"],
    registers,
  });
  const created = new Counter({
    name: "coppice_sandboxes_created_total",
    help: "Sandboxes made",
    registers,
  });
  const createFailures = new Counter({
    name: "coppice_sandboxes_create_failures_total",
    help: "Sandboxes that could not be made, or were given up while being made",
    registers,
  });
  const createSeconds = new Histogram({
    name: "coppice_sandboxes_create_seconds",
    help: "Time from asking for a sandbox to having it",
    buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    registers,
  });
  const ended = new Counter({
    name: "coppice_sandboxes_ended_total",
    help: "Sandboxes that are gone, by reason",
    labelNames: ["reason"],
    registers,
  });
  const destroyFailures = new Counter({
    name: "coppice_sandboxes_destroy_failures_total",
    help: "Attempts to destroy a sandbox that failed",
    registers,
  });
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
  const notReady = new Counter({
    name: "coppice_sandboxes_not_ready_total",
    help: "Sandboxes that were not ready in time and were removed, by the type of their readiness probe",
    labelNames: ["probe"],
    registers,
  });
  const eventsDropped = new Counter({
    name: "coppice_sandboxes_events_dropped_total",
    help: "Events that were dropped because too many waited for who could not take them",
    registers,
  });
  // From the start: an alert on the first increase needs a zero before it.
  for (const trigger of ["request", "timeout"] satisfies PauseTrigger[]) pauses.inc({ trigger }, 0);
  for (const trigger of ["request", "traffic"] satisfies ResumeTrigger[]) resumptions.inc({ trigger }, 0);
  const reasons: EndReason[] = [
    "killed",
    "timed out",
    "out of memory",
    "out of disk",
    "backend lost",
    "shutdown",
  ];
  for (const reason of reasons) ended.inc({ reason }, 0);
  for (const probe of ["tcp", "http", "shell"]) {
    readySeconds.zero({ probe });
    notReady.inc({ probe }, 0);
  }
  return {
    eventsDropped: (count) => eventsDropped.inc(count),
    ready: (probe, tookMs) => readySeconds.observe({ probe }, tookMs / 1000),
    notReady: (probe) => notReady.inc({ probe }),
    created(tookMs) {
      created.inc();
      createSeconds.observe(tookMs / 1000);
    },
    createFailed: () => createFailures.inc(),
    ended: (reason) => ended.inc({ reason }),
    destroyFailed: () => destroyFailures.inc(),
    paused: (trigger) => pauses.inc({ trigger }),
    pauseFailed: () => pauseFailures.inc(),
    snapshotTaken: (tookMs) => snapshotSeconds.observe(tookMs / 1000),
    resumed: (trigger) => resumptions.inc({ trigger }),
  };
}
