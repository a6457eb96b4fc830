import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, it } from "node:test";
import {
  Admissions,
  definePlugin,
  SandboxError,
  type SandboxEvent,
  SandboxEvents,
  type Sandboxes,
  systemClock,
} from "@coppice/core";
import { memoryBackend, startTestServer, type TestServer, freePort } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { NODES, nodeOf } from "../membership/node-record.js";
import { plugin as fleet } from "../plugin.js";
import type { FleetStore } from "../store/fleet-store.js";
import { openStore } from "../store/open-store.js";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "../testing/start-etcd.js";
import { UNTOLD } from "./lost-sandboxes.js";
import { countedOf, SANDBOXES } from "./fleet-sandbox.js";

const TENANT = "acme";
const MOST_CPUS = 8;

const told: SandboxEvent[] = [];
const recorder = definePlugin({
  name: "recorder",
  requires: { events: SandboxEvents },
  setup: (_context, { events }) => events.add((happened) => void told.push(...happened)),
});

/** As a quota of CPUs would be. */
const quota = definePlugin({
  name: "quota",
  requires: { admissions: Admissions },
  setup(_context, { admissions }) {
    admissions.add({
      counts: (owner) => owner === TENANT,
      check: ({ owner, limits }, existing) => {
        const used = existing.reduce((sum, other) => sum + (other.limits.cpuCount ?? 0), 0);
        if (owner === TENANT && used + (limits.cpuCount ?? 0) > MOST_CPUS)
          throw new SandboxError("sandbox_limit_reached", `${used} are in use`);
        return undefined;
      },
    });
  },
});

function cases(storeOf: () => Record<string, unknown>): void {
  let servers: TestServer[];
  let store: FleetStore;

  const start = async (index: number, onShutdown = "destroy"): Promise<TestServer> => {
    const port = await freePort();
    const listener = { host: "127.0.0.1", port };
    const settings = {
      node: `node${index}`,
      address: `http://127.0.0.1:${port}`,
      secret: "5eed".repeat(16),
      ...storeOf(),
    };
    return startTestServer({
      server: {
        listeners: { api: { host: "127.0.0.1", port: 0 }, fleet: listener },
        sandboxes: {
          maximumLimits: { cpuCount: 16 },
          templates: { base: { limits: { cpuCount: 1 } } },
          onShutdown,
        },
      },
      plugins: [[memoryBackend({ resizing: {}, pausing: {} })], [quota], [recorder], [fleet, settings]],
    });
  };

  beforeEach(async () => {
    store = openStore(
      fleetConfig.parse({ address: "http://127.0.0.1:1", secret: "5eed".repeat(16), ...storeOf() }),
      systemClock,
    );
    servers = [await start(0), await start(1), await start(2)];
  });
  afterEach(async () => {
    for (const server of servers) await server.stop();
    await store.close();
  });

  const own = (index: number): Sandboxes => {
    const server = servers[index % servers.length];
    assert.ok(server);
    return server.sandboxes.of(TENANT);
  };
  const create = async (index: number): Promise<string> =>
    (await own(index).create({ template: "base", timeoutMs: undefined, secure: false })).record.id;
  const total = (): number => servers.flatMap(({ sandboxes }) => sandboxes.list()).length;
  /** Ids with the limits that count. */
  const counted = async (): Promise<readonly string[]> => {
    const { entries } = await store.list(countedOf(TENANT));
    return entries.map(({ key, value }) => `${key.slice(countedOf(TENANT).length)} ${value}`);
  };
  const recorded = async (): Promise<readonly string[]> =>
    (await store.list(SANDBOXES)).entries.map(({ key }) => key.slice(SANDBOXES.length));

  it("a tenant gets as many as its quota of all servers, however many are asked for at once", async () => {
    const outcomes = await Promise.allSettled(Array.from({ length: 16 }, (_, index) => create(index)));
    const made = outcomes.flatMap((one) => (one.status === "fulfilled" ? [one.value] : []));
    for (const one of outcomes) if (one.status === "rejected") assert.match(String(one.reason), /are in use/);
    assert.equal(made.length, MOST_CPUS);
    assert.equal(total(), MOST_CPUS);
    assert.deepEqual((await recorded()).toSorted(), made.toSorted());
    assert.equal((await counted()).length, MOST_CPUS);
    // Room that one server has made is room for each.
    for (const [index, { sandboxes }] of servers.entries()) {
      const [first] = sandboxes.list();
      if (first === undefined) continue;
      await sandboxes.kill(first.record.id);
      await create(index + 1);
      await assert.rejects(create(index + 2), /8 are in use/);
    }
    const other = await servers[0]?.sandboxes.of("other").create({
      template: "base",
      timeoutMs: undefined,
      secure: false,
    });
    assert.ok(other, "the quota of one tenant is no concern of another one");
  });

  it("higher limits are weighed against what all servers have, and lower ones make room at once", async () => {
    const [one, two] = [await create(0), await create(1)];
    const raise = (index: number, id: string, cpuCount: number): Promise<void> =>
      own(index).setLimits(id, { cpuCount });
    const outcomes = await Promise.allSettled([raise(0, one, 7), raise(1, two, 7)]);
    assert.deepEqual(outcomes.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
    const [index, grown] = outcomes[0]?.status === "fulfilled" ? [0, one] : [1, two];
    assert.deepEqual(
      (await counted()).toSorted(),
      [`${grown} {"cpuCount":7}`, `${grown === one ? two : one} {"cpuCount":1}`].toSorted(),
    );
    await assert.rejects(create(2), /8 are in use/);
    await own(index).setLimits(grown, { cpuCount: 6 });
    await create(2);
    await assert.rejects(create(0), /8 are in use/);
  });

  it("a record that was made late, for a sandbox that its server does not have, is removed", async () => {
    const id = await create(0);
    const entries = [await store.get(SANDBOXES + id), await store.get(countedOf(TENANT) + id)];
    await own(0).kill(id);
    assert.deepEqual(await recorded(), []);
    await store.commit(
      [],
      entries.map((entry) => ({ put: entry?.key ?? "", value: entry?.value ?? "" })),
    );
    while ((await recorded()).length > 0) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.deepEqual(await counted(), []);
  });

  it("a loss is told once, also when the server that was to tell it is gone", async () => {
    const id = await create(0);
    const record = await store.get(SANDBOXES + id);
    await own(0).kill(id);
    const lost = { ...(JSON.parse(record?.value ?? "{}") as object), node: "gone", lostAtMs: 5 };
    await store.commit(
      [],
      [
        { put: `${SANDBOXES}lost`, value: JSON.stringify(lost) },
        { put: `${UNTOLD}lost`, value: "gone" },
        // Another server of the fleet is still to tell it.
        { put: `${UNTOLD}later`, value: "node1" },
      ],
    );
    told.length = 0;
    // Members look when one of them is gone.
    await servers.pop()?.stop();
    while ((await store.get(`${UNTOLD}lost`)) !== undefined)
      await new Promise((resolve) => setTimeout(resolve, 10));
    // Events of earlier sandboxes may come late.
    const losses = told.filter(({ sandboxId }) => sandboxId === "lost");
    assert.deepEqual(
      losses.map(({ type, sandboxId, owner, atMs, detail }) => [type, sandboxId, owner, atMs, detail.reason]),
      [["killed", "lost", TENANT, 5, "server lost"]],
    );
    assert.match(losses[0]?.id ?? "", /^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{12}$/);
  });

  it("a server that stops keeps its place for a paused sandbox, and removes the record of one that ends", async () => {
    const server = await start(3, "keep");
    servers.push(server);
    const [paused, ending] = [await create(3), await create(3)];
    await server.sandboxes.of(TENANT).pause(paused);
    await servers.pop()?.stop();
    assert.deepEqual([await recorded(), await counted()], [[paused], [`${paused} {"cpuCount":1}`]], ending);
    const place = await store.get(`${NODES}node3`);
    assert.notEqual(
      place && nodeOf(place, new FleetSecrets({ secret: "5eed".repeat(16) }))?.stoppedAtMs,
      undefined,
    );
  });

  it("what could not be recorded is not made, and nothing of it counts", async () => {
    await assert.rejects(
      servers[0]?.sandboxes
        .of(TENANT)
        .create(
          { template: "base", timeoutMs: undefined, secure: false, limits: { cpuCount: 9 } },
          AbortSignal.timeout(5000),
        ) ?? Promise.resolve(),
      /0 are in use/,
    );
    await assert.rejects(
      own(1).create({ template: "base", timeoutMs: undefined, secure: false }, AbortSignal.abort()),
    );
    assert.equal(total(), 0);
    assert.deepEqual([await recorded(), await counted()], [[], []]);
  });
}

describe("the sandboxes of a fleet in etcd", { skip: reasonWithoutEtcd(), timeout: 120_000 }, () => {
  let etcd: Cluster;
  let fleets = 0;
  before(async () => {
    etcd = await startEtcd();
  });
  after(() => etcd[Symbol.asyncDispose]());
  beforeEach(() => void (fleets += 1));
  cases(() => ({ etcd: { endpoints: etcd.endpoints, prefix: `/fleet${fleets}/` } }));
});

describe("the sandboxes of a fleet in an SQLite file", { timeout: 120_000 }, () => {
  let directory: string;
  let fleets = 0;
  before(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  });
  after(() => rm(directory, { recursive: true }));
  beforeEach(() => void (fleets += 1));
  cases(() => ({ file: join(directory, `${fleets}.sqlite`) }));
});
