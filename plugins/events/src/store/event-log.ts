import type { DatabaseSync } from "node:sqlite";
import { type SandboxEvent, Table } from "@coppice/core";
import { z } from "zod";
import type { EventsConfig } from "../events-config.js";
import type { Page } from "./list-of-servers.js";

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

function eventBody(event: SandboxEvent) {
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

const event = z.object({
  id: z.string(),
  tenant: z.string(),
  sandbox: z.string(),
  type: z.string(),
  atMs: z.number(),
  body: z.custom<EventBody>(),
});

interface EventQuery extends Page {
  /** Events of all tenants when it is undefined. */
  readonly tenant: string | undefined;
  readonly sandbox?: string | undefined;
  /** Names of types; all when empty. */
  readonly types: readonly string[];
}

/** Deleting row by row would double the cost of writing. */
const TRIMMED_EVERY = 64;

export class EventLog {
  readonly #config: EventsConfig;
  readonly #events: Table<typeof event>;
  readonly #grown = new Set<string>();
  #untrimmed = TRIMMED_EVERY;

  constructor(database: DatabaseSync, config: EventsConfig) {
    this.#config = config;
    this.#events = new Table(database, { name: "event", schema: event });
  }

  /** @returns the body of the event; undefined for one that was added before. */
  add(happened: SandboxEvent): EventBody | undefined {
    const body = eventBody(happened);
    const { id, owner: tenant, sandboxId: sandbox, atMs } = happened;
    const isNew = this.#events.insert(
      { id, tenant, sandbox, type: body.type, atMs, body },
      "INSERT OR IGNORE",
    );
    this.#grown.add(tenant);
    this.#untrimmed += 1;
    return isNew ? body : undefined;
  }

  /** Removes events beyond the limits, now and then. */
  trim(nowMs: number): void {
    if (this.#untrimmed < TRIMMED_EVERY) return;
    this.#untrimmed = 0;
    const { maxAge, maxEvents } = this.#config;
    this.#events.remove({ atMs: { "<": nowMs - maxAge } });
    for (const tenant of this.#grown)
      this.#events.run(
        `DELETE FROM event WHERE tenant = ?1 AND sequence <=
           (SELECT sequence FROM event WHERE tenant = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)`,
        tenant,
        maxEvents,
      );
    this.#grown.clear();
  }

  list({ tenant, sandbox, types, limit, offset, oldestFirst }: EventQuery): readonly EventBody[] {
    const where = {
      ...(tenant !== undefined && { tenant }),
      ...(sandbox !== undefined && { sandbox }),
      ...(types.length > 0 && { type: types }),
    };
    const page = { by: oldestFirst ? "sequence" : "sequence DESC", limit, offset };
    return this.#events.all(where, page).map(({ body }) => body);
  }
}
