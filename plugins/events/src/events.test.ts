import assert from "node:assert/strict";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { it } from "node:test";
import { eventually, fakeClock, SeededRandom } from "@coppice/core/testing";
import { startEventsServer } from "./testing/events-server.js";

it("an event has the fields that E2B's clients read, each type with its details", async () => {
  const sandboxes = { maximumLimits: { cpuCount: 4 } };
  await using server = await startEventsServer({ server: { sandboxes } });
  const { call, clock } = server;
  const id = await server.create({ user: "42" });
  await call(`POST /sandboxes/${id}/timeout`, { timeout: 60 });
  await call(`PUT /sandboxes/${id}/network`, { denyOut: ["192.0.2.1"] });
  await call(`PATCH /sandboxes/${id}/limits`, { cpuCount: 1 });
  await call(`POST /sandboxes/${id}/pause`);
  await call(`POST /sandboxes/${id}/connect`, { timeout: 60 });
  await call(`POST /sandboxes/${id}/snapshots`, { name: "kept" });
  await clock.advance(61_000);
  assert.deepEqual(await server.types(id), [
    "created",
    "updated",
    "updated",
    "updated",
    "paused",
    "resumed",
    "checkpointed",
    "killed",
  ]);
  const { json } = await call(`GET /events/sandboxes?orderAsc=true`);
  const [created, timeout, network, limits, paused, resumed, checkpointed, killed] = json;
  assert.deepEqual(
    { ...created, id: "" },
    {
      version: "v1",
      id: "",
      type: "sandbox.lifecycle.created",
      eventData: { sandbox_metadata: { user: "42" } },
      sandboxBuildId: "base",
      sandboxExecutionId: id,
      sandboxId: id,
      sandboxTeamId: "default",
      sandboxTemplateId: "base",
      timestamp: new Date(clock.now() - 61_000).toISOString(),
    },
  );
  const metadata = { sandbox_metadata: { user: "42" } };
  assert.deepEqual(timeout.eventData, {
    ...metadata,
    set_timeout: new Date(clock.now() - 1000).toISOString(),
  });
  assert.deepEqual(network.eventData.set_network.deny_out, ["192.0.2.1"]);
  assert.equal(limits.eventData.set_limits.cpu_count, 1);
  assert.equal(paused.eventData.reason, "request");
  assert.equal(resumed.eventData.reason, "request");
  assert.match(checkpointed.eventData.snapshot_id, /^\w+/);
  assert.deepEqual(killed.eventData, { ...metadata, reason: "timed out" });
  assert.equal(new Set(json.map((event: { id: string }) => event.id)).size, 8);
});

it("lists are pages, in either order, filtered by type; invalid queries are refused", async () => {
  await using server = await startEventsServer();
  const { call } = server;
  const first = await server.create();
  const second = await server.create();
  for (let index = 0; index < 12; index += 1)
    await call(`POST /sandboxes/${first}/timeout`, { timeout: 600 });
  await call(`DELETE /sandboxes/${second}`);
  const ask = async (query: string) =>
    (await call(`GET /events/sandboxes?${query}`)).json as { type: string; sandboxId: string }[];
  const everything = await ask("limit=100&orderAsc=true");
  assert.equal(everything.length, 15);
  assert.deepEqual(await ask(""), everything.toReversed().slice(0, 10));
  assert.deepEqual(await ask("limit=3&offset=1&orderAsc=true"), everything.slice(1, 4));
  const created = "sandbox.lifecycle.created";
  const killed = "sandbox.lifecycle.killed";
  assert.deepEqual(
    (await ask(`types=${created}`)).map(({ sandboxId }) => sandboxId),
    [second, first],
  );
  assert.deepEqual(await ask(`types=${created},${killed}`), await ask(`types=${created}&types=${killed}`));
  assert.equal((await ask(`types=${created},${killed}`)).length, 3);
  assert.deepEqual((await call("GET /events/sandboxes/imadeup")).json, []);
  for (const query of [
    "limit=0",
    "limit=101",
    "limit=x",
    "offset=-1",
    "orderAsc=maybe",
    "types=sandbox.lifecycle.x",
  ]) {
    const { status, json } = await call(`GET /events/sandboxes?${query}`);
    assert.equal(status, 400, query);
    assert.match(json.message, /^validation error: /);
  }
});

it("events outlive the server, within limits of number and age", async () => {
  const clock = fakeClock();
  await using first = await startEventsServer({ clock, settings: { maxEvents: 20, maxAge: "1h" } });
  const { dataDir } = first;
  const old = await first.create();
  await first.call(`DELETE /sandboxes/${old}`);
  const kept = await first.create();
  await first.stop();
  await using second = await startEventsServer({ clock, dataDir, settings: { maxEvents: 20, maxAge: "1h" } });
  assert.deepEqual(await second.types(old), ["created", "killed"]);
  assert.deepEqual(await second.types(kept), ["created", "killed"], "the stop itself is told");
  const busy = await second.create();
  const move = async (times: number) => {
    for (let index = 0; index < times; index += 1) {
      await second.call(`POST /sandboxes/${busy}/timeout`, { timeout: 3600 });
    }
  };
  await move(200);
  const count = async () => (await second.call("GET /events/sandboxes?limit=100")).json.length as number;
  assert.ok((await count()) <= 20 + 64, `${await count()} are kept`);
  await clock.advance(59 * 60_000);
  await second.call(`POST /sandboxes/${busy}/timeout`, { timeout: 3600 });
  await clock.advance(2 * 60_000);
  await move(64);
  const [oldest] = (await second.call("GET /events/sandboxes?limit=1&orderAsc=true")).json;
  assert.ok(Date.parse(oldest.timestamp) > clock.now() - 3_600_000, "what is older than an hour is gone");
});

it("a failed recording is repeated, and nothing is stored twice", async () => {
  await using server = await startEventsServer();
  const database = new DatabaseSync(join(server.dataDir, "events", "events.sqlite"));
  database.exec("ALTER TABLE event RENAME TO hidden");
  const id = await server.create();
  await server.call(`DELETE /sandboxes/${id}`);
  assert.equal((await server.call("GET /events/sandboxes")).status, 500);
  database.exec("ALTER TABLE hidden RENAME TO event");
  database.close();
  await server.clock.advance(5000);
  await eventually("both events", async () => (await server.types(id)).length >= 2);
  assert.deepEqual(await server.types(id), ["created", "killed"]);
});

it("events agree with what happened, for random operations", async () => {
  const random = new SeededRandom(Number(process.env["COPPICE_FUZZ_SEED"] ?? 7));
  await using server = await startEventsServer();
  const { call } = server;
  const expected = new Map<string, string[]>();
  const alive: string[] = [];
  const any = () => alive[random.below(alive.length)] ?? "imadeup";
  const note = (id: string, status: number, type: string) => {
    if (status < 300) expected.get(id)?.push(type);
  };
  const actions: readonly (() => Promise<void>)[] = [
    async () => {
      const id = await server.create();
      alive.push(id);
      expected.set(id, ["created"]);
    },
    async () => {
      const id = any();
      note(id, (await call(`POST /sandboxes/${id}/pause`)).status, "paused");
    },
    async () => {
      const id = any();
      const { status } = await call(`POST /sandboxes/${id}/connect`, { timeout: 15 });
      if (status === 201) note(id, status, "resumed");
    },
    async () => {
      const id = any();
      note(id, (await call(`POST /sandboxes/${id}/timeout`, { timeout: 7200 })).status, "updated");
    },
    async () => {
      const id = any();
      note(id, (await call(`PUT /sandboxes/${id}/network`, {})).status, "updated");
    },
    async () => {
      const id = any();
      note(id, (await call(`POST /sandboxes/${id}/snapshots`, {})).status, "checkpointed");
    },
    async () => {
      const id = any();
      const { status, json } = await call(`POST /sandboxes/${id}/fork`, { count: 1 });
      if (status !== 201) return;
      for (const { sandbox } of json as { sandbox: { sandboxID: string } }[]) {
        alive.push(sandbox.sandboxID);
        expected.set(sandbox.sandboxID, ["created"]);
      }
    },
    async () => {
      const id = any();
      note(id, (await call(`DELETE /sandboxes/${id}`)).status, "killed");
      if (alive.includes(id)) alive.splice(alive.indexOf(id), 1);
    },
  ];
  for (let step = 0; step < 200; step += 1) await actions[random.below(actions.length)]?.();
  for (const [id, types] of expected) {
    assert.deepEqual(await server.types(id), types, `seed ${random.seed}, sandbox ${id}`);
  }
});
