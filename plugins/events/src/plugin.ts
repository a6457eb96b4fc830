import {
  Clock,
  definePlugin,
  openedAtStart,
  Peers,
  SandboxEvents,
  TargetGuard,
  TenantRecords,
  Tenants,
} from "@coppice/core";
import { Deliverer } from "./webhooks/deliverer.js";
import { mountEvents, mountWebhooks } from "./webhooks/webhook-routes.js";
import { eventsConfig } from "./events-config.js";
import { eventsList } from "./events-verb.js";
import { eventsMetrics } from "./webhooks/events-metrics.js";
import { EventsStore } from "./store/events-store.js";
import { ownWebhooks, sharedWebhooks, type WebhookRecords } from "./webhooks/webhook-records.js";
import { Webhooks } from "./webhooks/webhooks.js";
import { REASONS } from "./reasons.js";

/** Events of sandboxes: kept for a while, listed, and delivered to webhooks. */
export const plugin = definePlugin({
  name: "events",
  reasons: REASONS,
  config: eventsConfig,
  verbs: { events: { list: eventsList } },
  requires: { events: SandboxEvents, clock: Clock, peers: Peers, records: TenantRecords, tenants: Tenants },
  setup(context, { events, clock, peers, records, tenants }) {
    const { config, log } = context;
    context.onReload([
      "maxAge",
      "maxEvents",
      "webhooks.attempts",
      "webhooks.firstRetry",
      "webhooks.longestRetry",
      "webhooks.maxDeliveries",
      "webhooks.maxPending",
      "webhooks.maxWebhooks",
      "webhooks.timeout",
    ]);
    const file = openedAtStart(() => new EventsStore(context.dataDir(), config));
    const store = file.get;
    context.onStart(() => file.open());
    context.onStop(() => file.close());

    const metrics = eventsMetrics(
      context.metrics,
      () => file.find()?.deliveries.count({ state: "pending" }) ?? 0,
    );
    const guard = new TargetGuard(config.webhooks.privateTargets);
    const deliverer = new Deliverer({
      settings: config.webhooks,
      deliveries: () => store().deliveries,
      guard,
      metrics,
      tenants,
      clock,
      log,
    });
    let current: WebhookRecords;
    context.onStart(async () => {
      const onDue = (webhook: string): void => deliverer.wake(webhook);
      const shared = await sharedWebhooks({ records, store: store().webhooks, onDue });
      if (shared !== undefined) context.onStop(() => shared.stop());
      current = shared ?? ownWebhooks(store().webhooks);
      deliverer.start();
    });
    context.onStop(() => deliverer.stop());

    events.add((happened) => {
      const { types, webhooks, dropped } = store().record(happened, clock.now());
      for (const type of types) metrics.recorded(type);
      metrics.dropped(dropped);
      for (const webhook of webhooks) deliverer.wake(webhook);
    });

    const webhooks = new Webhooks({
      settings: config.webhooks,
      records: () => current,
      deliveries: () => store().deliveries,
      guard,
      clock,
      onDue: (webhook) => deliverer.wake(webhook),
    });
    const router = context.http("api");
    mountEvents(router, { store, events, peers });
    mountWebhooks(router, { webhooks, store, events, peers });
  },
});
