import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import { END_REASONS } from "./describe-end.js";
import type { SandboxRecord } from "./live-sandbox.js";

export type PauseTrigger = "request" | "timeout";

/** Cause of a resumption: a client's request, or traffic. */
export type ResumeTrigger = "request" | "traffic";

export type SandboxMetrics = ReturnType<typeof sandboxMetrics>;

const BYTES_OF_MIB = 2 ** 20;
/** Tenants with series of their own. The rest shares the empty name, which no tenant has. */
const MOST_TENANTS = 50;

/** The records of one tenant, or of several, by their states. */
type Promised = Readonly<Record<"running" | "paused", SandboxRecord[]>>;

/**
 * Registers what tenants have. Nothing is kept between scrapes: each counts the records,
 * once. @param records called at each scrape: all sandboxes that are not gone.
 */
function capacityMetrics(registry: Registry, records: () => readonly SandboxRecord[]): void {
  const registers = [registry];
  const gauge = (metric: { name: string; help: string; collect?: () => void }) =>
    new Gauge({ ...metric, labelNames: ["tenant", "state"], registers });
  const gauges = [
    // Registered first, thus collected first: it fills the others, too.
    {
      metric: gauge({ name: "coppice_sandboxes_of_tenant", help: "Sandboxes, by tenant and state", collect }),
      of: () => 1,
    },
    {
      metric: gauge({ name: "coppice_sandboxes_promised_cpus", help: "Sum of the limits of CPUs" }),
      of: ({ limits }: SandboxRecord) => limits.cpuCount ?? 0,
    },
    {
      metric: gauge({ name: "coppice_sandboxes_promised_memory_bytes", help: "Sum of the limits of memory" }),
      of: ({ limits }: SandboxRecord) => (limits.memoryMiB ?? 0) * BYTES_OF_MIB,
    },
    {
      metric: gauge({ name: "coppice_sandboxes_promised_disk_bytes", help: "Sum of the limits of disks" }),
      of: ({ limits }: SandboxRecord) => (limits.diskMiB ?? 0) * BYTES_OF_MIB,
    },
  ];
  function collect(): void {
    const tenants = tenantsWithMost(records());
    for (const { metric, of } of gauges) {
      metric.reset();
      for (const [tenant, promised] of tenants)
        for (const state of ["running", "paused"] as const)
          metric.set(
            { tenant, state },
            promised[state].reduce((sum, record) => sum + of(record), 0),
          );
    }
  }
}

function tenantsWithMost(records: readonly SandboxRecord[]): ReadonlyMap<string, Promised> {
  const all = new Map<string, Promised>();
  for (const record of records) {
    let promised = all.get(record.owner);
    if (promised === undefined) all.set(record.owner, (promised = { running: [], paused: [] }));
    if (record.state === "running" || record.state === "paused") promised[record.state].push(record);
  }
  const sizeOf = ({ running, paused }: Promised): number => running.length + paused.length;
  const sorted = [...all].sort(([, one], [, other]) => sizeOf(other) - sizeOf(one));
  const shown = new Map(sorted.slice(0, MOST_TENANTS));
  const rest = sorted.slice(MOST_TENANTS).map(([, promised]) => promised);
  if (rest.length > 0)
    shown.set("", {
      running: rest.flatMap(({ running }) => running),
      paused: rest.flatMap(({ paused }) => paused),
    });
  return shown;
}

export interface SandboxMetricsOptions {
  readonly registry: Registry;
  /** Called at each scrape. */
  readonly now: {
    /** Of all sandboxes that are not gone. */
    readonly records: () => readonly SandboxRecord[];
    /** Age of the oldest event that recorders have not taken. */
    readonly eventsBehindMs: () => number;
  };
}

/** Registers the metrics `coppice_sandboxes_…`. */
export function sandboxMetrics({ registry, now }: SandboxMetricsOptions) {
  const registers = [registry];
  const counter = <L extends string>(metric: { name: string; help: string; labelNames?: L[] }): Counter<L> =>
    new Counter({ ...metric, registers });
  const gauge = (metric: { name: string; help: string }, state: "running" | "paused"): Gauge =>
    new Gauge({
      ...metric,
      registers,
      collect() {
        this.set(now.records().filter((record) => record.state === state).length);
      },
    });
  gauge({ name: "coppice_sandboxes_running", help: "Sandboxes that serve now" }, "running");
  gauge({ name: "coppice_sandboxes_paused", help: "Sandboxes that are paused now" }, "paused");
  capacityMetrics(registry, now.records);
  new Gauge({
    name: "coppice_sandboxes_events_behind_seconds",
    help: "Age of the oldest event that those who record events have not taken",
    registers,
    collect() {
      this.set(now.eventsBehindMs() / 1000);
    },
  });
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
