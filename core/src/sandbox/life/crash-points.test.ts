import assert from "node:assert/strict";
import { it } from "node:test";
import type { LiveSandbox } from "../model/live-sandbox.js";
import { ALL_TRAFFIC, type NetworkPolicy } from "../contract/egress-rules.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import { assertAgreement } from "../testing/assert-agreement.js";
import { type CrashingServer, World } from "../testing/crashing-server.js";
import { base, MINUTE_MS } from "../testing/start-domain.js";

interface Scenario {
  readonly what: string;
  readonly prepare?: (server: CrashingServer, sandbox: LiveSandbox) => Promise<unknown>;
  readonly run: (server: CrashingServer, sandbox: LiveSandbox) => Promise<unknown>;
  /** Asserts the state after a restart: `next` is a server on the data of the crashed one. */
  readonly check: (next: CrashingServer, id: string) => void | Promise<void>;
}

const snapshotsOf = (server: CrashingServer) => server.domain.snapshots.of(DEFAULT_TENANT);
const volumesOf = (server: CrashingServer) => server.domain.volumes.of(DEFAULT_TENANT);
const closed: NetworkPolicy = {
  allowInternetAccess: true,
  egress: { allowOut: [], denyOut: [ALL_TRAFFIC] },
};
const stateOf = (server: CrashingServer, id: string) => server.domain.sandboxes.find(id)?.record.state;

const scenarios: readonly Scenario[] = [
  {
    what: "making a sandbox",
    run: ({ domain }) => domain.sandboxes.create({ ...base, metadata: { kind: "new" } }),
    check: ({ domain }, id) => {
      const others = domain.sandboxes.list().filter(({ record }) => record.id !== id);
      for (const { record } of others) assert.equal(record.state, "running", "half a sandbox was adopted");
    },
  },
  {
    what: "waiting for a sandbox to be ready",
    run: ({ domain }) =>
      domain.sandboxes.create({ ...base, readinessProbe: { type: "shell", command: ["ready"] } }),
    check: ({ domain }, id) => {
      const others = domain.sandboxes.list().filter(({ record }) => record.id !== id);
      for (const { record } of others) assert.equal(record.state, "running", "half a sandbox was adopted");
    },
  },
  {
    what: "killing a sandbox",
    run: ({ domain }, { record }) => domain.sandboxes.kill(record.id),
    check: (next, id) => assert.ok(["running", undefined].includes(stateOf(next, id))),
  },
  {
    what: "pausing a sandbox",
    run: ({ domain }, { record }) => domain.sandboxes.pause(record.id),
    check: (next, id) => assert.ok(["running", "paused"].includes(stateOf(next, id) ?? "")),
  },
  {
    what: "pausing a sandbox without its memory",
    run: ({ domain }, { record }) => domain.sandboxes.pause(record.id, { keepsMemory: false }),
    check: (next, id) => assert.ok(["running", "paused"].includes(stateOf(next, id) ?? "")),
  },
  {
    what: "resuming a sandbox without its memory",
    prepare: ({ domain }, { record }) => domain.sandboxes.pause(record.id),
    run: ({ domain }, { record }) => domain.sandboxes.resume(record.id, MINUTE_MS, { keepsMemory: false }),
    check: (next, id) => assert.ok(["running", "paused"].includes(stateOf(next, id) ?? "")),
  },
  {
    what: "having a stopped sandbox begin anew",
    prepare: ({ domain }, { record }) => domain.sandboxes.pause(record.id, { keepsMemory: false }),
    run: ({ domain }, { record }) => domain.sandboxes.resume(record.id, MINUTE_MS),
    check: async (next, id) => {
      assert.ok(["running", "paused"].includes(stateOf(next, id) ?? ""));
      await next.domain.sandboxes.resume(id, MINUTE_MS);
      await next.domain.sandboxes.get(id).runtime.spawn({ path: "ready", args: [], env: {} });
    },
  },
  {
    what: "resuming a sandbox",
    prepare: ({ domain }, { record }) => domain.sandboxes.pause(record.id),
    run: ({ domain }, { record }) => domain.sandboxes.resume(record.id, MINUTE_MS),
    check: (next, id) => assert.ok(["running", "paused"].includes(stateOf(next, id) ?? "")),
  },
  {
    what: "killing a paused sandbox",
    prepare: ({ domain }, { record }) => domain.sandboxes.pause(record.id),
    run: ({ domain }, { record }) => domain.sandboxes.kill(record.id),
    check: (next, id) => assert.ok(["paused", undefined].includes(stateOf(next, id))),
  },
  {
    what: "taking a snapshot",
    run: (server, { record }) => snapshotsOf(server).take(record.id, "kept"),
    check: (next, id) => {
      assert.equal(stateOf(next, id), "running");
      assert.ok(snapshotsOf(next).list().length <= 1);
    },
  },
  {
    what: "taking a snapshot whose name another one has",
    prepare: (server, { record }) => snapshotsOf(server).take(record.id, "kept"),
    run: (server, { record }) => snapshotsOf(server).take(record.id, "kept"),
    check: (next) => {
      const named = snapshotsOf(next)
        .list()
        .filter(({ name }) => name !== undefined);
      assert.ok(named.length <= 1, "two snapshots have one name");
    },
  },
  {
    what: "removing a snapshot",
    prepare: (server, { record }) => snapshotsOf(server).take(record.id, "kept"),
    run: (server) => snapshotsOf(server).remove(snapshotsOf(server).find("kept")?.id ?? ""),
    check: (next, id) => assert.equal(stateOf(next, id), "running"),
  },
  {
    what: "forking a sandbox",
    run: (server, { record }) => snapshotsOf(server).fork(record.id, { count: 2, timeoutMs: MINUTE_MS }),
    check: (next, id) => {
      assert.equal(stateOf(next, id), "running");
      const forks = next.domain.sandboxes.list().filter(({ record }) => record.id !== id);
      assert.ok(forks.length <= 2);
      assert.deepEqual(snapshotsOf(next).list(), [], "the snapshot of a fork outlived it");
    },
  },
  {
    what: "changing the network rules of a sandbox",
    run: ({ domain }, { record }) => domain.sandboxes.setNetworkPolicy(record.id, closed),
    check: (next, id) => {
      assert.equal(stateOf(next, id), "running");
      assert.ok([undefined, closed.egress].includes(next.domain.sandboxes.get(id).record.egress));
    },
  },
  {
    what: "making a volume",
    run: (server) => volumesOf(server).create({ name: "data" }),
    check: async (next) => {
      // Either the volume exists and is complete, or its name is free.
      if (volumesOf(next).find("data") === undefined) await volumesOf(next).create({ name: "data" });
    },
  },
  {
    what: "making a sandbox with a volume",
    prepare: (server) => volumesOf(server).create({ name: "data" }),
    run: ({ domain }) => domain.sandboxes.create({ ...base, mounts: [{ volume: "data", path: "/data" }] }),
    check: (next) => assert.ok(volumesOf(next).find("data")),
  },
  {
    what: "removing a volume that a sandbox has, and the sandbox",
    prepare: async (server) => {
      await volumesOf(server).create({ name: "data" });
      await server.domain.sandboxes.create({ ...base, mounts: [{ volume: "data", path: "/data" }] });
    },
    run: async (server, { record }) => {
      await volumesOf(server).remove(volumesOf(server).find("data")?.id ?? "");
      const others = server.domain.sandboxes.list().filter((one) => one.record.id !== record.id);
      for (const other of others) await server.domain.sandboxes.kill(other.record.id);
    },
    check: (next, id) => assert.equal(stateOf(next, id), "running"),
  },
  {
    what: "moving the end of a sandbox",
    run: ({ domain }, { record }) => domain.sandboxes.setTimeout(record.id, 2 * MINUTE_MS),
    check: (next, id) => assert.equal(stateOf(next, id), "running"),
  },
];

for (const { what, prepare, run, check } of scenarios) {
  it(`a crash at any step of ${what} is made good by the next server`, async () => {
    let crashes = 0;
    for (let at = 1; ; at += 1) {
      const world = new World();
      const server = await world.start();
      const sandbox = await server.domain.sandboxes.create(base);
      const { id } = sandbox.record;
      await prepare?.(server, sandbox);
      await server.domain.events.caughtUp();
      server.crashAt(at);
      const outcome = await server.attempt(run(server, sandbox));
      assert.notEqual(outcome, "failed", `it failed before step ${at}`);
      if (outcome === "done") break;
      crashes += 1;
      const next = await world.start();
      await check(next, id);
      await assertAgreement(world, next);
      for (const { record } of next.domain.sandboxes.list()) await next.domain.sandboxes.kill(record.id);
      for (const { id: snapshot } of snapshotsOf(next).list()) await snapshotsOf(next).remove(snapshot);
      for (const { id: volume } of volumesOf(next).list()) await volumesOf(next).remove(volume);
      await assertAgreement(world, next);
      assert.deepEqual([...world.backend.sandboxes.keys()], [], `left after a crash at step ${at}`);
      assert.deepEqual(await world.backend.snapshots?.list(), []);
      await next.domain.stop();
    }
    assert.ok(crashes >= 2, "there is a step before and after each call");
  });
}

it("the next start repairs a crash at any step of a start", async () => {
  for (let at = 1; ; at += 1) {
    const world = new World();
    const first = await world.start();
    const { sandboxes } = first.domain;
    const paused = await sandboxes.create(base);
    await sandboxes.pause(paused.record.id);
    const running = await sandboxes.create(base);
    await snapshotsOf(first).take(running.record.id, "kept");
    await sandboxes.create({ ...base, timeoutMs: 1 });
    const killed = await sandboxes.create(base);
    await first.domain.events.caughtUp();
    // The ledger says that it is being killed; the backend has not begun.
    first.crashAt(3);
    assert.equal(await first.attempt(sandboxes.kill(killed.record.id)), "crashed");
    await world.clock.advance(10);

    const second = world.prepare();
    second.crashAt(at);
    const started = second.domain.start().then(() => second.domain.tellEvents());
    const outcome = await second.attempt(started);
    assert.notEqual(outcome, "failed", `it failed before step ${at}`);
    second.crashAt(Infinity);
    const last = second.isDead ? await world.start() : second;
    assert.equal(stateOf(last, paused.record.id), "paused");
    assert.equal(stateOf(last, running.record.id), "running");
    assert.equal(last.domain.sandboxes.list().length, 2);
    assert.equal(snapshotsOf(last).list().length, 1);
    await assertAgreement(world, last);
    await last.domain.stop();
    if (outcome === "done") break;
  }
});
