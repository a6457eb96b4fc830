import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import type { Sandboxes } from "@coppice/core";
import { fakeClock } from "@coppice/core/testing";
import { KeyView } from "../store/key-view.js";
import type { FleetStore } from "../store/fleet-store.js";
import { SqliteStore } from "../store/sqlite/sqlite-store.js";
import { type FleetSandbox, SANDBOXES, sandboxOf, sandboxText } from "./fleet-sandbox.js";
import { OwnSandboxes } from "./own-sandboxes.js";

const FACTS = { tenant: "acme", template: "base", backend: "memory", startedAtMs: 1 };
const log = { debug: () => {}, warn: () => {}, error: () => {} };

describe("a server that joins with a map that is behind the record", () => {
  let store: FleetStore;
  /** What the server knows of the record, of the moment when the test stopped its watch. */
  let known: KeyView<FleetSandbox>;
  let directory: string;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    store = new SqliteStore({
      path: join(directory, "fleet.sqlite"),
      clock: fakeClock(),
      pollMs: 5,
      keptRevisions: 100,
    });
    known = new KeyView({ store, prefix: SANDBOXES, parse: sandboxOf, log });
  });
  afterEach(async () => {
    await store.close();
    await rm(directory, { recursive: true });
  });

  const record = (
    id: string,
    facts: { readonly node: string; readonly lostAtMs?: number },
  ): Promise<unknown> =>
    store.commit([], [{ put: SANDBOXES + id, value: sandboxText({ ...FACTS, ...facts }) }]);
  const knowAll = async (): Promise<void> => {
    await known.start();
    await known.stop();
  };
  /** @returns the ids of what it ends. */
  const joins = async (...ids: readonly string[]): Promise<readonly string[]> => {
    const live = ids.map((id) => ({ record: { ...FACTS, id, owner: "acme", limits: {} } }));
    const ended: string[] = [];
    const own = new OwnSandboxes({
      store,
      known,
      node: "a",
      membership: { check: { key: "nodes/a", createRevision: 0 } },
      sandboxes: {
        find: (id: string) => live.find((one) => one.record.id === id)?.record,
        list: () => live,
        kill: async (id: string) => void ended.push(id),
      } as unknown as Sandboxes,
      clock: fakeClock(),
      log,
    });
    await own.reconcile();
    return ended;
  };
  const recorded = async (): Promise<readonly string[]> =>
    (await store.list(SANDBOXES)).entries.map((entry) => {
      const { node, lostAtMs } = sandboxOf(entry) ?? {};
      return `${entry.key.slice(SANDBOXES.length)} of ${node}${lostAtMs === undefined ? "" : ", lost"}`;
    });

  it("ends what was given up for lost meanwhile, and leaves the losses to be told", async () => {
    for (const id of ["kept", "running", "ended"]) await record(id, { node: "a" });
    await knowAll();
    for (const id of ["running", "ended"]) await record(id, { node: "a", lostAtMs: 5 });
    assert.deepEqual(await joins("kept", "running"), ["running"]);
    assert.deepEqual(await recorded(), ["ended of a, lost", "kept of a", "running of a, lost"]);
  });

  it("records what it has, and removes the records of what it has not, whenever they were made", async () => {
    for (const id of ["early", "other"]) await record(id, { node: id === "other" ? "b" : "a" });
    await knowAll();
    await record("late", { node: "a" });
    assert.deepEqual(await joins("unrecorded"), []);
    assert.deepEqual(await recorded(), ["other of b", "unrecorded of a"]);
  });
});
