import assert from "node:assert/strict";
import { DEFAULT_TENANT } from "../tenant.js";
import type { CrashingServer, World } from "./crashing-server.js";

/** What a server says, what its ledger holds, what its backend has and what its metrics count are one and the same. */
export async function assertAgreement(world: World, { domain, metrics }: CrashingServer): Promise<void> {
  const records = domain.sandboxes.list().map(({ record }) => record);
  const byId = (one: { readonly id: string }, other: { readonly id: string }) => (one.id < other.id ? -1 : 1);
  const entries = await world.ledger.entries();
  assert.deepEqual(entries.map(({ record }) => record).toSorted(byId), records.toSorted(byId), "the ledger");
  const states = [...world.backend.sandboxes].map(([id, { isPaused }]) => ({ id, isPaused }));
  const expected = records.map(({ id, state }) => ({ id, isPaused: state === "paused" }));
  assert.deepEqual(states.toSorted(byId), expected.toSorted(byId), "the backend");
  const snapshots = domain.snapshots.of(DEFAULT_TENANT).list();
  assert.deepEqual(
    (await world.ledger.snapshots()).toSorted(byId),
    snapshots.toSorted(byId),
    "its snapshots",
  );
  const kept = (await world.backend.snapshots?.list()) ?? [];
  assert.deepEqual(kept.toSorted(), snapshots.map(({ id }) => id).toSorted(), "the backend's snapshots");
  for (const state of ["running", "paused"] as const) {
    const values = (await metrics.getSingleMetric(`coppice_sandboxes_${state}`)?.get())?.values ?? [];
    const count = records.filter((record) => record.state === state).length;
    assert.equal(values[0]?.value, count, `the metric of ${state} sandboxes`);
  }
}
