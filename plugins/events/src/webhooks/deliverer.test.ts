import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it } from "node:test";
import type { Logger } from "@coppice/core";
import { TargetGuard } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { Deliverer } from "./deliverer.js";
import type { DeliveryStore } from "../store/delivery-store.js";
import type { EventBody } from "../store/event-body.js";
import { eventsConfig } from "../events-config.js";
import type { EventsMetrics } from "./events-metrics.js";
import { EventsStore } from "../store/events-store.js";
import { Receiver } from "../testing/receiver.js";

it("deliveries that cannot be read are logged and tried again, in a timer as anywhere", async () => {
  const clock = fakeClock();
  const logged: unknown[] = [];
  let asked = 0;
  const deliveries = {
    waiting: () => ["hook"],
    next() {
      asked += 1;
      throw new Error("database or disk is full");
    },
  } as unknown as DeliveryStore;
  const deliverer = new Deliverer({
    settings: eventsConfig.parse({}).webhooks,
    deliveries: () => deliveries,
    guard: {} as TargetGuard,
    metrics: {} as EventsMetrics,
    clock,
    log: { error: (fields: object) => logged.push(fields) } as unknown as Logger,
  });
  deliverer.start();
  assert.equal(asked, 1);
  await clock.advance(60_000);
  assert.ok(asked > 1, "it is not tried again");
  assert.equal(logged.length, asked);
  await deliverer.stop();
  assert.equal(clock.pending, 0, "a timer is still armed");
});

it("an attempt that was answered leaves no timer", async (context) => {
  const clock = fakeClock();
  await using receiver = await Receiver.start();
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-events-"));
  const config = eventsConfig.parse({});
  const store = new EventsStore(dataDir, config);
  context.after(async () => {
    store.close();
    await rm(dataDir, { recursive: true });
  });
  const webhook = { id: "hook", tenant: "me", name: "mine", url: receiver.url, isEnabled: true };
  store.webhooks.put({ ...webhook, types: [], secret: "quiet", createdAtMs: 0 }, { isShared: false });
  store.deliveries.add("hook", { id: "event", type: "x", sandboxId: "y" } as EventBody, clock.now());
  const { promise: attempted, resolve } = Promise.withResolvers<string>();
  const deliverer = new Deliverer({
    settings: config.webhooks,
    deliveries: () => store.deliveries,
    guard: new TargetGuard(["127.0.0.1"]),
    metrics: { attempted: resolve } as unknown as EventsMetrics,
    clock,
    log: {} as unknown as Logger,
  });
  deliverer.start();
  assert.equal(await attempted, "delivered");
  assert.equal(clock.pending, 0);
  await deliverer.stop();
});
