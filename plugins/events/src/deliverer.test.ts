import assert from "node:assert/strict";
import { test } from "node:test";
import type { Logger } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { Deliverer } from "./deliverer.js";
import type { DeliveryStore } from "./delivery-store.js";
import { EventsConfig } from "./events-config.js";
import type { EventsMetrics } from "./events-metrics.js";
import type { TargetGuard } from "./target-guard.js";

test("deliveries that cannot be read are logged and tried again, in a timer as anywhere", async () => {
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
    settings: EventsConfig.parse({}).webhooks,
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
