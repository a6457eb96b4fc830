import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import { type Logger, severalTenants, TargetGuard } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { Deliverer } from "./deliverer.js";
import type { DeliveryTable } from "../store/delivery-table.js";
import type { EventBody } from "../store/event-log.js";
import { eventsConfig } from "../events-config.js";
import type { EventsMetrics } from "./events-metrics.js";
import { post } from "./post.js";
import { EventsStore } from "../store/events-store.js";
import { Receiver } from "../testing/receiver.js";

/** A store of events in a folder of its own, which ends with the test. */
async function openStore(
  context: TestContext,
  config: ReturnType<typeof eventsConfig.parse>,
): Promise<EventsStore> {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-events-"));
  const store = new EventsStore(dataDir, config);
  context.after(async () => {
    store.close();
    await rm(dataDir, { recursive: true });
  });
  return store;
}

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
  } as unknown as DeliveryTable;
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
  const config = eventsConfig.parse({});
  const store = await openStore(context, config);
  const webhook = { id: "hook", tenant: "me", name: "mine", url: receiver.url, isEnabled: true };
  store.webhooks.put({ ...webhook, types: [], secret: "quiet", createdAtMs: 0, isShared: false });
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

it("an address that the guard does not permit any more gets nothing, whatever was registered", async () => {
  await using receiver = await Receiver.start();
  const { signal } = new AbortController();
  const sent = post({ url: receiver.url, headers: {}, body: "", guard: new TargetGuard([]), signal });
  await assert.rejects(sent, { message: "the host has no public address" });
  assert.deepEqual(receiver.received, []);
});

it("slow receivers of one tenant leave turns for those of others", async (context) => {
  await using slow = await Receiver.start();
  await using quick = await Receiver.start();
  const held: (() => void)[] = [];
  slow.answer = (_received, response) => void held.push(() => response.writeHead(204).end());
  const config = eventsConfig.parse({ webhooks: { concurrency: 4 } });
  const store = await openStore(context, config);
  for (const [id, tenant] of [1, 2, 3, 4, 5].map((n) => [`evil${n}`, "evil"]).concat([["own", "acme"]])) {
    const url = tenant === "evil" ? slow.url : quick.url;
    const webhook = { id: id ?? "", tenant: tenant ?? "", name: "", url, isEnabled: true, types: [] };
    store.webhooks.put({ ...webhook, secret: "quiet", createdAtMs: 0, isShared: false });
    const event = { id: `event-${id}`, type: "x", sandboxId: "y" } as EventBody;
    store.deliveries.add(webhook.id, event, 0);
  }
  const { promise: attempted, resolve } = Promise.withResolvers<string>();
  const deliverer = new Deliverer({
    settings: config.webhooks,
    deliveries: () => store.deliveries,
    guard: new TargetGuard(["127.0.0.1"]),
    metrics: { attempted: resolve } as unknown as EventsMetrics,
    tenants: severalTenants(),
    clock: fakeClock(),
    log: { warn() {} } as unknown as Logger,
  });
  deliverer.start();
  assert.equal(await attempted, "delivered");
  await quick.count(1);
  await slow.count(2);
  // Each that ends gives its turn to the next of its tenant.
  for (let count = 2; count <= 5; count += 1) {
    await slow.count(count);
    held.shift()?.();
  }
  assert.equal(slow.received.length, 5);
  await deliverer.stop();
});
