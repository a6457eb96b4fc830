import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, it } from "node:test";
import type { SandboxRecord, Sandboxes } from "@coppice/core";
import { eventually, fakeClock } from "@coppice/core/testing";
import { NODES, type NodeRecord } from "../membership/node-record.js";
import { type FleetStore, type KeyCheck, UnknownOutcome } from "../store/fleet-store.js";
import { SqliteStore } from "../store/sqlite/sqlite-store.js";
import { countedOf, type FleetSandbox, SANDBOXES, sandboxOf, sandboxText } from "./fleet-sandbox.js";
import { LostSandboxes, tellLosses, UNTOLD } from "./lost-sandboxes.js";
import { OwnSandboxes } from "./own-sandboxes.js";

const FACTS = { tenant: "acme", template: "base", backend: "memory", startedAtMs: 1 };
const log = { debug: () => {}, warn: () => {}, error: () => {} };

describe("a commit of a server that has lost its place, and does not know it yet", () => {
  let store: FleetStore;
  let directory: string;
  /** What a member's commits are checked by: the revision of its own key. */
  let check: KeyCheck;
  beforeEach(async () => {
    directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
    const path = join(directory, "fleet.sqlite");
    store = new SqliteStore({ path, clock: fakeClock(), pollMs: 5, keptRevisions: 100 });
    check = await joined("a");
  });
  afterEach(async () => {
    await store.close();
    await rm(directory, { recursive: true });
  });

  const joined = async (node: string): Promise<KeyCheck> => {
    const modRevision = await store.commit([], [{ put: NODES + node, value: "{}" }]);
    return { key: NODES + node, modRevision: modRevision ?? 0 };
  };
  /** Keeps the record of `a`. */
  const ownIn = (own: FleetStore): OwnSandboxes =>
    new OwnSandboxes({
      store: own,
      known: { entries: () => new Map<string, FleetSandbox>().entries(), revision: 0 },
      node: "a",
      membership: { check },
      sandboxes: { find: () => undefined, list: () => [] } as unknown as Sandboxes,
      clock: fakeClock(),
      log,
    });
  const sandbox = (id: string) => ({ ...FACTS, id, owner: "acme", limits: {} }) as unknown as SandboxRecord;
  const reserved = (admit?: () => void) => ({ admit, signal: AbortSignal.timeout(20_000) });
  const keys = async (): Promise<readonly string[]> => {
    const lists = await Promise.all([SANDBOXES, countedOf("acme")].map((prefix) => store.list(prefix)));
    return lists.flatMap(({ entries }) => entries.map(({ key, modRevision }) => `${key} ${modRevision}`));
  };

  it("makes no record of a sandbox, and changes none", async () => {
    const own = ownIn(store);
    await own.add(
      sandbox("before"),
      reserved(() => {}),
    );
    const before = await keys();
    assert.equal(before.length, 2);
    // Another process of that server has its place now, or the others have given it up.
    for (const lose of [() => joined("a"), () => store.commit([], [{ delete: check.key }])]) {
      await lose();
      for (const admit of [undefined, () => {}]) {
        await assert.rejects(own.add(sandbox("after"), reserved(admit)));
        await assert.rejects(own.raise(sandbox("after"), reserved(admit)));
      }
      assert.deepEqual(await keys(), before);
    }
  });

  it("is taken back where the store did not say whether it was made", async () => {
    const silent = new Proxy(store, {
      get(target, name: keyof FleetStore) {
        const method = (target[name] as (...args: unknown[]) => unknown).bind(target);
        if (name !== "commit") return method;
        return async (...args: unknown[]) => {
          await method(...args);
          throw new UnknownOutcome(new Error("no answer"));
        };
      },
    });
    await assert.rejects(ownIn(silent).add(sandbox("one"), reserved()), UnknownOutcome);
    await eventually("its record is gone", async () => (await keys()).length === 0);
  });

  it("tells no loss in place of a teller that is gone", async () => {
    const value = sandboxText({ ...FACTS, node: "b", lostAtMs: 5 });
    await store.commit(
      [],
      [
        { put: `${SANDBOXES}one`, value },
        { put: `${UNTOLD}one`, value: "c" },
      ],
    );
    const told: unknown[] = [];
    const options = {
      store,
      node: "a",
      nodes: new Map<string, NodeRecord>(),
      events: { tellEnd: async (end: unknown) => void told.push(end) },
      log: { info: () => {} },
    };
    const former = check;
    check = await joined("a");
    await tellLosses({ ...options, membership: { check: former } });
    assert.deepEqual([told, (await store.get(`${UNTOLD}one`))?.value], [[], "c"]);
    await tellLosses({ ...options, membership: { check } });
    assert.equal(told.length, 1);
    assert.equal(await store.get(`${UNTOLD}one`), undefined);
  });

  describe("of the losses of another one", () => {
    let leases = 0;
    /** Counts what it grants, and does not take back. */
    const counting = (): FleetStore =>
      new Proxy(store, {
        get(target, name: keyof FleetStore) {
          if (name === "grant") leases += 1;
          if (name === "revoke") leases -= 1;
          return (target[name] as (...args: unknown[]) => unknown).bind(target);
        },
      });
    /** Looks once for lost sandboxes. @returns true when that of `b` was marked. */
    const marks = async (): Promise<boolean> => {
      const value = sandboxText({ ...FACTS, node: "b" });
      await store.commit([], [{ put: `${SANDBOXES}one`, value }]);
      const entry = await store.get(`${SANDBOXES}one`);
      const known = entry && sandboxOf(entry);
      assert.ok(known);
      const { promise: looked, resolve } = Promise.withResolvers<void>();
      const clock = fakeClock();
      const lost = new LostSandboxes({
        store: counting(),
        membership: { check },
        node: "a",
        // As a view that has not heard of the latest yet.
        nodes: new Map<string, NodeRecord>(),
        sandboxes: new Map([["one", known]]),
        keptMs: 1000,
        tell: async () => resolve(),
        clock,
        log,
      });
      lost.lookSoon(0);
      await clock.advance(1);
      await looked;
      lost.stop();
      const after = await store.get(`${SANDBOXES}one`);
      return after !== undefined && sandboxOf(after)?.lostAtMs !== undefined;
    };

    it("marks nothing; a member does so, unless that one is back", async () => {
      assert.equal(await marks(), true);
      assert.equal(leases, 1);
      await joined("b");
      assert.equal(await marks(), false, "it is back");
      await store.commit([], [{ delete: `${NODES}b` }]);
      await joined("a");
      assert.equal(await marks(), false, "this server is a former member");
      assert.equal(leases, 1, "what remembers nothing is taken back");
    });
  });
});
