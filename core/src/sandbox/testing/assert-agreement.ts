import assert from "node:assert/strict";
import { egressRulesOf } from "../contract/egress-rules.js";
import { DEFAULT_TENANT } from "../model/tenant-records.js";
import type { CrashingServer, World } from "./crashing-server.js";

/** Asserts that each event was delivered once, in order, and matches the sandboxes. */
async function assertTold(world: World, { domain }: CrashingServer): Promise<void> {
  await domain.events.caughtUp();
  assert.deepEqual(await world.ledger.outbox(1), [], "the outbox");
  const states = new Map<string, "running" | "paused" | "gone">();
  const snapshots: string[] = [];
  for (const { type, sandboxId, detail } of world.told.values()) {
    const before = states.get(sandboxId);
    const what = `${sandboxId} was ${type} when it was ${before ?? "never told of"}`;
    if (type === "snapshotted") snapshots.push(detail.snapshot ?? "");
    else assert.notEqual(before, "gone", what);
    assert.equal(before === undefined, type === "created", what);
    if (type === "paused") assert.equal(before, "running", what);
    if (type === "resumed") assert.equal(before, "paused", what);
    if (type === "created" || type === "resumed") states.set(sandboxId, "running");
    if (type === "paused") states.set(sandboxId, "paused");
    if (type === "killed") states.set(sandboxId, "gone");
  }
  const alive = [...states].filter(([, state]) => state !== "gone");
  const expected = domain.sandboxes.list().map(({ record }) => [record.id, record.state] as const);
  assert.deepEqual(new Map(alive), new Map(expected), "what was told of");
  const ready = domain.snapshots.of(DEFAULT_TENANT).list();
  for (const { id } of ready) assert.ok(snapshots.includes(id), `nothing was told of snapshot ${id}`);
  assert.equal(new Set(snapshots).size, snapshots.length, "snapshots that were told of twice");
}

/** Asserts that the server, its ledger, its backend, its metrics and its events agree. */
export async function assertAgreement(world: World, server: CrashingServer): Promise<void> {
  const { domain, metrics } = server;
  const records = domain.sandboxes.list().map(({ record }) => record);
  const byId = (one: { readonly id: string }, other: { readonly id: string }) => (one.id < other.id ? -1 : 1);
  const entries = await world.ledger.entries();
  assert.deepEqual(entries.map(({ record }) => record).toSorted(byId), records.toSorted(byId), "the ledger");
  // A sandbox that the backend failed to stop is stopped completely before it starts again.
  const toBeStopped = new Set(records.filter(({ isStopped }) => isStopped).map(({ id }) => id));
  const states = [...world.backend.sandboxes].map(([id, { isPaused, isStopped }]) =>
    toBeStopped.has(id) ? { id } : { id, isPaused, isStopped },
  );
  const expected = records.map(({ id, state }) =>
    toBeStopped.has(id) ? { id } : { id, isPaused: state === "paused", isStopped: false },
  );
  assert.deepEqual(states.toSorted(byId), expected.toSorted(byId), "the backend");
  const snapshots = domain.snapshots.of(DEFAULT_TENANT).list();
  assert.deepEqual(
    (await world.ledger.snapshots()).toSorted(byId),
    snapshots.toSorted(byId),
    "its snapshots",
  );
  const kept = (await world.backend.snapshots?.list()) ?? [];
  assert.deepEqual(kept.toSorted(), snapshots.map(({ id }) => id).toSorted(), "the backend's snapshots");
  const volumes = domain.volumes.of(DEFAULT_TENANT).list();
  const mounted = records.flatMap(({ mounts }) => mounts.map(({ volume }) => volume));
  const wanted = [...new Set([...volumes.map(({ id }) => id), ...mounted])];
  const recorded = (await world.ledger.volumes()).map(({ id }) => id);
  assert.deepEqual(recorded.toSorted(), wanted.toSorted(), "its volumes");
  const there = (await world.backend.volumes?.list()) ?? [];
  assert.deepEqual(there.toSorted(), wanted.toSorted(), "the backend's volumes");
  for (const record of records) {
    // Applied when it starts again.
    if (record.isStopped) continue;
    const { egress, spec } = world.backend.sandboxes.get(record.id) ?? {};
    const { allowInternetAccess = true } = spec ?? {};
    const kept = egress ?? egressRulesOf({ allowInternetAccess, egress: undefined });
    assert.deepEqual(kept, egressRulesOf(record), `the network rules of ${record.id}`);
  }
  for (const state of ["running", "paused"] as const) {
    const values = (await metrics.getSingleMetric(`coppice_sandboxes_${state}`)?.get())?.values ?? [];
    const count = records.filter((record) => record.state === state).length;
    assert.equal(values[0]?.value, count, `the metric of ${state} sandboxes`);
  }
  await assertTold(world, server);
}
