import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { openDatabase, type SandboxEvent, transaction } from "@coppice/core";
import { DeliveryStore } from "./delivery-store.js";
import { EventLog } from "./event-log.js";
import type { EventsConfig } from "../events-config.js";
import { MIGRATIONS } from "./migrations.js";
import { WebhookStore } from "./webhook-store.js";

/** Events, webhooks and deliveries in one SQLite file. Committed writes survive the end of this process. */
export class EventsStore {
  readonly #database: DatabaseSync;
  readonly events: EventLog;
  readonly webhooks: WebhookStore;
  readonly deliveries: DeliveryStore;

  /** @throws Error that names the file when it cannot be used. */
  constructor(dataDir: string, config: EventsConfig) {
    this.#database = openDatabase({ path: join(dataDir, "events.sqlite"), migrations: MIGRATIONS });
    this.events = new EventLog(this.#database, config);
    this.webhooks = new WebhookStore(this.#database);
    this.deliveries = new DeliveryStore(this.#database, config.webhooks);
  }

  /**
   * Stores new events and their deliveries, all or nothing. Known events are left out. @returns the type names of the
   * new ones, the webhooks that get them, and how many deliveries are dropped.
   */
  record(events: readonly SandboxEvent[], nowMs: number) {
    const types: string[] = [];
    const woken = new Set<string>();
    let dropped = 0;
    transaction(this.#database, () => {
      for (const event of events) {
        const body = this.events.add(event);
        if (body === undefined) continue;
        types.push(body.type);
        for (const { id, isEnabled, types: wanted } of this.webhooks.list(event.owner)) {
          if (!isEnabled || !wanted.includes(body.type)) continue;
          if (this.deliveries.add(id, body, nowMs)) woken.add(id);
          else dropped += 1;
        }
      }
      this.events.trim(nowMs);
    });
    return { types, webhooks: woken, dropped };
  }

  close(): void {
    this.#database.close();
  }
}
