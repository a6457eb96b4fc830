import { Counter, Gauge, Histogram, type Registry } from "prom-client";
import { NamedTenants } from "../../bounds/tenants.js";
import type { ResourceShortage } from "../contract/process.js";
import { END_REASONS } from "./describe-end.js";
import type { SandboxRecord } from "./live-sandbox.js";
import type { SandboxUse } from "./sandbox-use.js";
import type { SandboxesConfig } from "./sandboxes-config.js";

export type PauseTrigger = "request" | "timeout";

/** Cause of a resumption: a client's request, or traffic. */
export type ResumeTrigger = "request" | "traffic";

export type SandboxMetrics = ReturnType<typeof sandboxMetrics>;

const BYTES_OF_MIB = 2 ** 20;
const STATES = ["running", "paused"] as const;

/** A sandbox as metrics see it. */
interface MeteredSandbox {
  readonly record: SandboxRecord;
  readonly use: SandboxUse;
}

type ByState = Readonly<Record<(typeof STATES)[number], MeteredSandbox[]>>;

interface TenantMetricsOptions extends SandboxMetricsOptions {
  readonly tenants: NamedTenants;
}

/**
 * Registers what tenants have and use. The gauges keep nothing between scrapes: each counts the sandboxes, once.
 * @returns counts what a sandbox has used since the last call.
 */
function tenantMetrics({ registry, now, tenants }: TenantMetricsOptions): (sandbox: MeteredSandbox) => void {
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
      of: ({ record }: MeteredSandbox) => record.limits.cpuCount ?? 0,
    },
    {
      metric: gauge({ name: "coppice_sandboxes_promised_memory_bytes", help: "Sum of the limits of memory" }),
      of: ({ record }: MeteredSandbox) => (record.limits.memoryMiB ?? 0) * BYTES_OF_MIB,
    },
    {
      metric: gauge({ name: "coppice_sandboxes_promised_disk_bytes", help: "Sum of the limits of disks" }),
      of: ({ record }: MeteredSandbox) => (record.limits.diskMiB ?? 0) * BYTES_OF_MIB,
    },
    {
      metric: gauge({ name: "coppice_sandboxes_used_memory_bytes", help: "Memory in use, as last sampled" }),
      of: ({ record, use }: MeteredSandbox) =>
        record.isStopped === true ? 0 : (use.stats?.memoryUsedBytes ?? 0),
    },
    {
      metric: gauge({ name: "coppice_sandboxes_used_disk_bytes", help: "Disk in use, as last sampled" }),
      of: ({ use }: MeteredSandbox) => use.stats?.diskUsedBytes ?? 0,
    },
  ];
  function collect(): void {
    const named = new Map<string, ByState>();
    for (const sandbox of now.sandboxes()) {
      const { owner, state } = sandbox.record;
      const name = tenants.nameOf(owner);
      let own = named.get(name);
      if (own === undefined) named.set(name, (own = { running: [], paused: [] }));
      if (state === "running" || state === "paused") own[state].push(sandbox);
    }
    for (const { metric, of } of gauges) {
      metric.reset();
      for (const [tenant, own] of named)
        for (const state of STATES)
          metric.set(
            { tenant, state },
            own[state].reduce((sum, sandbox) => sum + of(sandbox), 0),
          );
    }
  }
  const cpuSeconds = new Counter({
    name: "coppice_sandboxes_used_cpu_seconds_total",
    help: "Processor time of sandboxes, also of those that have ended",
    labelNames: ["tenant"],
    registers,
    collect() {
      for (const sandbox of now.sandboxes()) countUse(sandbox);
    },
  });
  function countUse({ record, use }: MeteredSandbox): void {
    cpuSeconds.inc({ tenant: tenants.nameOf(record.owner) }, use.takeCpuSeconds());
  }
  return countUse;
}

export interface SandboxMetricsOptions {
  readonly registry: Registry;
  /** Called at each scrape. */
  readonly now: {
    /** All sandboxes that are not gone. */
    readonly sandboxes: () => readonly MeteredSandbox[];
    /** Age of the oldest event that recorders have not taken. */
    readonly eventsBehindMs: () => number;
  };
  readonly settings: Pick<SandboxesConfig, "tenantsInMetrics">;
}

/** Registers the metrics `coppice_sandboxes_…`. */
export function sandboxMetrics(options: SandboxMetricsOptions) {
  const { registry, now, settings } = options;
  const tenants = new NamedTenants(settings.tenantsInMetrics);
  const registers = [registry];
  const counter = <L extends string>(metric: { name: string; help: string; labelNames?: L[] }): Counter<L> =>
    new Counter({ ...metric, registers });
  const gauge = (metric: { name: string; help: string }, state: "running" | "paused"): Gauge =>
    new Gauge({
      ...metric,
      registers,
      collect() {
        this.set(now.sandboxes().filter(({ record }) => record.state === state).length);
      },
    });
  gauge({ name: "coppice_sandboxes_running", help: "Sandboxes that serve now" }, "running");
  gauge({ name: "coppice_sandboxes_paused", help: "Sandboxes that are paused now" }, "paused");
  const countUse = tenantMetrics({ ...options, tenants });
  new Gauge({
    name: "coppice_sandboxes_events_behind_seconds",
    help: "Age of the oldest event that those who record events have not taken",
    registers,
    collect() {
      this.set(now.eventsBehindMs() / 1000);
    },
  });
  const shortages = counter({
    name: "coppice_sandboxes_shortages_total",
    help: "Times that a sandbox lacked a resource, by its tenant",
    labelNames: ["tenant", "resource"],
  });
  const metrics = {
    /** Call it before a sandbox is gone. */
    countUse,
    lacked: ({ owner }: SandboxRecord, resource: ResourceShortage["resource"]) =>
      shortages.inc({ tenant: tenants.nameOf(owner), resource }),
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
