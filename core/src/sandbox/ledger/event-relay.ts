import { randomUUID } from "node:crypto";
import type { Clock } from "../../kernel/clock.js";
import type { Logger } from "../../observe/logger.js";
import type { Ledger } from "./ledger.js";
import type { SandboxRecord } from "../model/live-sandbox.js";
import type { SandboxMetrics } from "../model/sandbox-metrics.js";
import {
  endEventId,
  type SandboxEvent,
  type SandboxEventDetail,
  type SandboxEventType,
  type EventRecorder,
  type SandboxEvents,
} from "../model/sandbox-event.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";

export interface EventRelayOptions {
  readonly ledger: Ledger;
  readonly settings: Pick<SandboxesConfig, "maximumOutbox">;
  readonly metrics: Pick<SandboxMetrics, "eventsDropped">;
  readonly clock: Clock;
  readonly log: Logger;
}

const AT_ONCE = 100;
const RETRY_MS = 5000;
/** A pass costs the same for one event as for many, and a burst of changes has one for each. */
const PASS_EVERY_MS = 20;

/** Delivers events from the ledger's outbox to the recorders. */
export class EventRelay implements SandboxEvents {
  readonly #options: EventRelayOptions;
  readonly #recorders: EventRecorder[] = [];
  #isDelivering = false;
  /** Time of the oldest event of the batch that recorders have yet to take. */
  #oldestAtMs: number | undefined;
  #isWoken = false;
  #passing: Promise<void> | undefined;
  /** Set between two passes. */
  #pause: NodeJS.Timeout | undefined;
  #disarm: (() => void) | undefined;

  constructor(options: EventRelayOptions) {
    this.#options = options;
  }

  add(recorder: EventRecorder): void {
    this.#recorders.push(recorder);
  }

  /** A new event for the ledger; undefined without recorders. */
  of(
    type: SandboxEventType,
    record: Pick<SandboxRecord, "id" | "owner" | "template" | "build" | "snapshot" | "metadata">,
    detail: SandboxEventDetail = {},
  ): SandboxEvent | undefined {
    if (this.#recorders.length === 0) return undefined;
    const { id: sandboxId, owner, template, snapshot, metadata } = record;
    const build = record.build && { build: record.build.id };
    const atMs = this.#options.clock.now();
    const id = type === "killed" ? endEventId(sandboxId) : randomUUID();
    return { id, type, atMs, sandboxId, owner, template, ...build, snapshot, metadata, detail };
  }

  /** Marks an awaited event as happened. Never rejects: if the ledger fails, the next start does it. */
  async confirm(event: SandboxEvent | undefined): Promise<void> {
    if (event === undefined) return;
    const { ledger, clock, log } = this.#options;
    try {
      await ledger.confirm({ ...event, atMs: clock.now() });
      this.wake();
    } catch (error) {
      log.error({ sandbox: event.sandboxId, event: event.type, err: error }, "an event could not be written");
    }
  }

  /** Call it when the ledger may have got an event. */
  wake(): void {
    if (!this.#isDelivering || this.#recorders.length === 0) return;
    this.#isWoken = true;
    if (this.#pause === undefined) this.#begin();
  }

  async tellEnd(end: Omit<SandboxEvent, "id" | "type">): Promise<void> {
    const event: SandboxEvent = { ...end, id: endEventId(end.sandboxId), type: "killed" };
    for (const record of this.#recorders) await record([event]);
  }

  /** Age of the oldest event that recorders have not taken, as far as is known; 0 when they have all. */
  behindMs(): number {
    return this.#oldestAtMs === undefined ? 0 : Math.max(0, this.#options.clock.now() - this.#oldestAtMs);
  }

  async caughtUp(): Promise<void> {
    this.#endPause();
    this.wake();
    await this.#passing;
  }

  /** Starts to deliver, beginning with the last server's events. */
  start(): void {
    this.#isDelivering = true;
    this.wake();
  }

  /** Delivers the remaining events; the next start delivers those that fail. */
  async stop(): Promise<void> {
    await this.caughtUp();
    this.#isDelivering = false;
    this.#endPause();
    this.#disarm?.();
    this.#disarm = undefined;
  }

  #begin(): void {
    this.#passing ??= this.#pass().finally(() => {
      this.#passing = undefined;
      // Of this machine's time, not of the clock's: it spares the processor.
      this.#pause = setTimeout(() => {
        this.#pause = undefined;
        if (this.#isWoken) this.wake();
      }, PASS_EVERY_MS).unref();
    });
  }

  #endPause(): void {
    clearTimeout(this.#pause);
    this.#pause = undefined;
  }

  /** Drops the oldest of too many events. Never rejects: an unwritable ledger gets no more of them either. */
  async #makeRoom(): Promise<void> {
    const { ledger, settings, metrics, log } = this.#options;
    const most = settings.maximumOutbox;
    try {
      const dropped = await ledger.trimOutbox(most);
      if (dropped === 0) return;
      metrics.eventsDropped.inc(dropped);
      log.error({ dropped, most }, "more events wait than may: the oldest are dropped and will not be told");
    } catch (error) {
      log.error({ err: error }, "surplus events of the outbox could not be dropped");
    }
  }

  async #pass(): Promise<void> {
    const { ledger, clock, log } = this.#options;
    this.#disarm?.();
    this.#disarm = undefined;
    try {
      while (this.#isWoken) {
        this.#isWoken = false;
        const events = await ledger.outbox(AT_ONCE);
        this.#oldestAtMs = events[0]?.atMs;
        if (events.length === 0) continue;
        for (const record of this.#recorders) await record(events);
        await ledger.clearOutbox(events.map(({ id }) => id));
        this.#isWoken = true;
      }
    } catch (error) {
      this.#isWoken = false;
      log.error({ err: error }, "events could not be handed over; that is tried again");
      await this.#makeRoom();
      this.#disarm = clock.after(RETRY_MS, () => this.wake());
    }
  }
}
