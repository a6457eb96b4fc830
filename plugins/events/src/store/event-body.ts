import type { SandboxEvent } from "@coppice/core";

const PREFIX = "sandbox.lifecycle.";

/** E2B's names of the types. */
const EVENT_TYPE_NAMES: Readonly<Record<SandboxEvent["type"], string>> = {
  created: `${PREFIX}created`,
  updated: `${PREFIX}updated`,
  paused: `${PREFIX}paused`,
  resumed: `${PREFIX}resumed`,
  snapshotted: `${PREFIX}checkpointed`,
  exhausted: `${PREFIX}exhausted`,
  killed: `${PREFIX}killed`,
};

export const EVENT_TYPES: readonly string[] = Object.values(EVENT_TYPE_NAMES);

/** An event as E2B's clients and webhooks get it. */
export type EventBody = ReturnType<typeof eventBody>;

export function eventBody(event: SandboxEvent) {
  const template = event.snapshot ?? event.template;
  const data = eventData(event);
  return {
    version: "v1" as const,
    id: event.id,
    type: EVENT_TYPE_NAMES[event.type],
    eventData: Object.keys(data).length === 0 ? null : data,
    // A template that its backend has by itself has no builds.
    sandboxBuildId: event.snapshot ?? event.build ?? template,
    // Sandboxes have one life each.
    sandboxExecutionId: event.sandboxId,
    sandboxId: event.sandboxId,
    sandboxTeamId: event.owner,
    sandboxTemplateId: template,
    timestamp: new Date(event.atMs).toISOString(),
  };
}

function eventData({ metadata, detail }: SandboxEvent): Record<string, unknown> {
  const { reason, endsAtMs, network, limits, snapshot, name } = detail;
  return {
    ...(Object.keys(metadata).length > 0 && { sandbox_metadata: metadata }),
    ...(reason !== undefined && { reason }),
    ...(endsAtMs !== undefined && { set_timeout: new Date(endsAtMs).toISOString() }),
    ...(network && {
      set_network: {
        allow_internet_access: network.allowInternetAccess,
        allow_out: network.allowOut,
        deny_out: network.denyOut,
      },
    }),
    ...(limits && {
      set_limits: {
        cpu_count: limits.cpuCount ?? null,
        memory_mb: limits.memoryMiB ?? null,
        disk_size_mb: limits.diskMiB ?? null,
      },
    }),
    ...(snapshot !== undefined && { snapshot_id: snapshot }),
    ...(name !== undefined && { snapshot_name: name }),
  };
}
