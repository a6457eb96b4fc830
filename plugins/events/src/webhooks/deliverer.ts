import {
  type Clock,
  failedConnection,
  type Logger,
  Shares,
  sleep,
  traced,
  traceHeaders,
  within,
  type TargetGuard,
  type Tenants,
} from "@coppice/core";
import type { DeliveryTable, DueDelivery } from "../store/delivery-table.js";
import type { EventsConfig } from "../events-config.js";
import type { EventsMetrics } from "./events-metrics.js";
import { post, signatureHeaders } from "./post.js";

export interface DelivererOptions {
  readonly settings: EventsConfig["webhooks"];
  /** Called from the start on. */
  readonly deliveries: () => DeliveryTable;
  readonly guard: TargetGuard;
  readonly metrics: EventsMetrics;
  /** Where there are several, each has its share of `concurrency`. */
  readonly tenants?: Tenants;
  readonly clock: Clock;
  readonly log: Logger;
}

/**
 * Delivers events to webhooks: to each in order, one delivery at a time, with retries until it is accepted or the
 * attempts are used up. A delivery under way when the server ended is sent again by the next.
 */
export class Deliverer {
  readonly #options: DelivererOptions;
  readonly #ready = new Set<string>();
  readonly #busy = new Map<string, Promise<void>>();
  readonly #timers = new Map<string, () => void>();
  readonly #stopped = new AbortController();
  readonly #turns: Shares;

  constructor(options: DelivererOptions) {
    this.#options = options;
    this.#turns = new Shares(options.settings.concurrency, options.tenants);
  }

  /** Resumes the last server's deliveries. */
  start(): void {
    for (const webhook of this.#options.deliveries().waiting()) this.wake(webhook);
  }

  /** Cuts deliveries under way, which count as not attempted. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    this.#ready.clear();
    for (const disarm of this.#timers.values()) disarm();
    this.#timers.clear();
    await Promise.all(this.#busy.values());
  }

  wake(webhook: string): void {
    if (this.#stopped.signal.aborted) return;
    this.#ready.add(webhook);
    this.#pump();
  }

  #pump(): void {
    const { settings, deliveries, clock, log } = this.#options;
    const later: string[] = [];
    for (const webhook of this.#ready) {
      if (this.#turns.isFull) break;
      this.#ready.delete(webhook);
      // It is woken again when that is done.
      if (this.#busy.has(webhook)) continue;
      this.#timers.get(webhook)?.();
      this.#timers.delete(webhook);
      let due: DueDelivery | undefined;
      try {
        due = deliveries().next(webhook);
      } catch (error) {
        // A full disk, for example. Called by timers, where an error would be uncaught.
        log.error(
          { webhook, err: error },
          "what is due for a webhook could not be read; that is tried again",
        );
        this.#wakeLater(webhook, settings.firstRetry);
        continue;
      }
      if (due === undefined) continue;
      if (due.nextAtMs > clock.now()) {
        this.#wakeLater(webhook, due.nextAtMs - clock.now());
        continue;
      }
      const { tenant } = due;
      if (this.#turns.take(tenant) !== undefined) {
        later.push(webhook);
        continue;
      }
      const done = this.#attempt(due).finally(() => {
        this.#busy.delete(webhook);
        this.#turns.give(tenant);
        this.wake(webhook);
      });
      this.#busy.set(webhook, done);
    }
    // Their turn comes when another one of their tenant ends.
    for (const webhook of later) this.#ready.add(webhook);
  }

  #wakeLater(webhook: string, delayMs: number): void {
    const disarm = this.#options.clock.after(delayMs, () => {
      this.#timers.delete(webhook);
      this.wake(webhook);
    });
    this.#timers.set(webhook, disarm);
  }

  /** Never rejects. */
  async #attempt(due: DueDelivery): Promise<void> {
    const { settings, deliveries, metrics, clock, log } = this.#options;
    const startedAtMs = clock.now();
    let status: number | undefined;
    let reason: string | undefined;
    try {
      status = await this.#send(due);
      if (status < 200 || status >= 300) reason = `it was answered with ${status}`;
    } catch (error) {
      if (this.#stopped.signal.aborted) return;
      reason = failedConnection(error);
    }
    const nowMs = clock.now();
    const attempts = due.attempts + 1;
    const isLast = reason === undefined || attempts >= settings.attempts;
    const waitMs = Math.min(settings.firstRetry * 2 ** (attempts - 1), settings.longestRetry);
    try {
      deliveries().attempted(due.id, due.webhook, {
        state: reason === undefined ? "delivered" : isLast ? "failed" : "pending",
        attempts,
        nextAtMs: isLast ? undefined : nowMs + waitMs,
        endedAtMs: isLast ? nowMs : undefined,
        status,
        error: reason,
      });
    } catch (error) {
      // It stays due, but not at once, or a full disk would cause a flood of deliveries.
      log.error({ webhook: due.webhook, delivery: due.id, err: error }, "a delivery could not be noted");
      await sleep(clock, settings.firstRetry, this.#stopped.signal).catch(() => undefined);
      return;
    }
    metrics.attempted(
      reason === undefined ? "delivered" : isLast ? "failed" : "retried",
      nowMs - startedAtMs,
    );
    if (isLast && reason !== undefined)
      log.warn({ webhook: due.webhook, delivery: due.id, attempts, reason }, "a delivery has failed");
  }

  async #send({ id, webhook, body, url, secret }: DueDelivery): Promise<number> {
    const { settings, guard, clock } = this.#options;
    const timestampS = Math.floor(clock.now() / 1000);
    const headersOf = (): Record<string, string> => ({
      ...traceHeaders(),
      "content-type": "application/json",
      "user-agent": "coppice-webhooks",
      "e2b-webhook-id": webhook,
      "e2b-delivery-id": id,
      ...signatureHeaders({ id, timestampS, body, secret }),
    });
    const deliver = (): Promise<number> =>
      within((signal) => post({ url, headers: headersOf(), body, guard, signal }), {
        clock,
        timeoutMs: settings.timeout,
        signal: this.#stopped.signal,
        overdue: () => new Error(`there was no answer within ${settings.timeout} ms`),
      });
    return traced("webhook.deliver", deliver, {
      isApart: true,
      attributes: { "coppice.webhook": webhook, "coppice.delivery": id },
    });
  }
}
