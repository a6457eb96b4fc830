import type { DatabaseSync } from "node:sqlite";
import { type SandboxEvent, Table } from "@coppice/core";
import { z } from "zod";
import { type EventBody, eventBody } from "./event-body.js";
import type { EventsConfig } from "../events-config.js";
import type { Page } from "./list-of-servers.js";

const event = z.object({
  id: z.string(),
  tenant: z.string(),
  sandbox: z.string(),
  type: z.string(),
  atMs: z.number(),
  body: z.custom<EventBody>(),
});

interface EventQuery extends Page {
  readonly tenant: string;
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
      tenant,
      ...(sandbox !== undefined && { sandbox }),
      ...(types.length > 0 && { type: types }),
    };
    const page = { by: oldestFirst ? "sequence" : "sequence DESC", limit, offset };
    return this.#events.all(where, page).map(({ body }) => body);
  }
}
