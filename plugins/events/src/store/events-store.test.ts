import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import type { SandboxEvent } from "@coppice/core";
import { eventsConfig } from "../events-config.js";
import { EventsStore } from "./events-store.js";

const TYPE = "sandbox.lifecycle.updated";

async function openStore(context: TestContext, settings: object): Promise<EventsStore> {
  const dataDir = await mkdtemp(join(tmpdir(), "coppice-events-"));
  const store = new EventsStore(dataDir, eventsConfig.parse(settings));
  context.after(async () => {
    store.close();
    await rm(dataDir, { recursive: true });
  });
  return store;
}

function eventsOf(owner: string, count: number): readonly SandboxEvent[] {
  return Array.from({ length: count }, (_, index) => ({
    id: `${owner}-${index}`,
    type: "updated" as const,
    atMs: 1000,
    sandboxId: `sandbox-of-${owner}`,
    owner,
    template: "base",
    snapshot: undefined,
    metadata: {},
    detail: {},
  }));
}

function webhookOf(tenant: string) {
  const id = `webhook-of-${tenant}`;
  const wish = { name: "mine", url: "https://hooks.example/", types: [TYPE], isEnabled: true };
  return { id, tenant, ...wish, secret: "quiet", createdAtMs: 0, isShared: false };
}

it("a tenant's events are kept up to its own maximum, whatever others do", async (context) => {
  const store = await openStore(context, { maxEvents: 10 });
  store.record([...eventsOf("quiet", 5), ...eventsOf("even", 10), ...eventsOf("busy", 100)], 1000);
  const kept = (tenant: string) =>
    store.events
      .list({ tenant, types: [], limit: 200, offset: 0, oldestFirst: true })
      .map(({ id }) => Number(id.split("-")[1]));
  assert.deepEqual(kept("quiet"), [0, 1, 2, 3, 4]);
  assert.deepEqual(kept("even"), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
  assert.deepEqual(kept("busy"), [90, 91, 92, 93, 94, 95, 96, 97, 98, 99]);
});

it("an event is kept up to its maximum age, and no longer", async (context) => {
  const store = await openStore(context, { maxAge: "1s" });
  const kept = () =>
    store.events.list({ tenant: "me", types: [], limit: 1, offset: 0, oldestFirst: true }).length;
  // Events are removed once in 64.
  store.record(eventsOf("me", 64), 2000);
  assert.equal(kept(), 1);
  store.record(eventsOf("others", 64), 2001);
  assert.equal(kept(), 0);
});

it("an event names the build of a template, the snapshot that a sandbox began with, or else the template", async (context) => {
  const store = await openStore(context, {});
  const [plain] = eventsOf("me", 1);
  assert.ok(plain);
  const build = "00000000-0000-4000-8000-000000000001";
  store.record(
    [plain, { ...plain, id: "built", build }, { ...plain, id: "saved", build, snapshot: "s1" }],
    1000,
  );
  const listed = store.events.list({ tenant: "me", types: [], limit: 10, offset: 0, oldestFirst: true });
  assert.deepEqual(
    listed.map(({ sandboxBuildId, sandboxTemplateId }) => [sandboxBuildId, sandboxTemplateId]),
    [
      ["base", "base"],
      [build, "base"],
      ["s1", "s1"],
    ],
  );
});

it("webhooks and deliveries are found by their own tenant and webhook alone", async (context) => {
  const store = await openStore(context, {});
  const { webhooks, deliveries } = store;
  const [mine, theirs] = [webhookOf("me"), webhookOf("them")];
  for (const webhook of [mine, theirs]) webhooks.put(webhook);
  store.record([...eventsOf("me", 1), ...eventsOf("them", 1)], 1000);
  const list = (tenant: string, webhook?: string) =>
    deliveries.page({ tenant, webhook, limit: 10, offset: 0, oldestFirst: true });
  assert.deepEqual(
    list("me").map(({ webhook }) => webhook),
    [mine.id],
  );
  assert.deepEqual(list("me", theirs.id), []);

  // Deliveries that have ended can be repeated.
  const done = { state: "delivered", attempts: 1, nextAtMs: undefined, endedAtMs: 1, status: 204 } as const;
  for (const { id, webhook } of [...list("me"), ...list("them")])
    deliveries.attempted(id, webhook, { ...done, error: undefined });
  const [their] = list("them");
  assert.ok(their);
  assert.equal(deliveries.repeat(mine.id, their.id, 2000), false);
  assert.deepEqual(list("them"), [their], "another webhook's delivery was touched");
  assert.equal(deliveries.repeat(theirs.id, their.id, 2000), true);

  assert.ok(deliveries.isOf("them", their.id));
  assert.ok(!deliveries.isOf("me", their.id));

  webhooks.put({ ...theirs, tenant: "me", url: "https://mine.example/" });
  assert.deepEqual(webhooks.list("me"), [mine]);
  assert.deepEqual(webhooks.list("them"), [theirs]);
});
