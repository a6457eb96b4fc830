import type { Capacity, LiveSandbox, SandboxState } from "@coppice/core";
import type { NamedSandbox } from "./sandbox-store.js";

const STATES = { creating: "creating", running: "running", paused: "stopped", killing: "deleting" } as const;

export interface SandboxBodyOptions {
  readonly named: NamedSandbox;
  readonly capacity: Capacity;
  readonly lastActivityMs: number;
}

/** A sandbox, as the contract has it. */
export function sandboxBody(
  { record }: LiveSandbox,
  { named, capacity, lastActivityMs }: SandboxBodyOptions,
) {
  const ends = [named.deadlineMs, record.endsAtMs].filter((time) => time !== undefined);
  return {
    id: record.id,
    name: named.name,
    state: STATES[record.state satisfies SandboxState],
    tier: named.tier,
    image: record.template,
    created_at: new Date(record.startedAtMs).toISOString(),
    last_activity_at: new Date(lastActivityMs).toISOString(),
    auto_stop_minutes: named.autoStopMs / 60_000,
    disk_gb: Math.round(capacity.diskMiB / 1024),
    cpu_milli: Math.round(capacity.cpuCount * 1000),
    memory_mb: Math.round(capacity.memoryMiB),
    ...(ends.length > 0 && { deadline: new Date(Math.min(...ends)).toISOString() }),
    ...(named.workdir !== undefined && { workdir: named.workdir }),
  };
}
