import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { it, type TestContext } from "node:test";
import { fakeClock } from "@coppice/core/testing";
import { NODES, type NodeRecord } from "../membership/node-record.js";
import { SqliteStore } from "../store/sqlite/sqlite-store.js";
import { FleetPlacement } from "./fleet-placement.js";

const KEPT_MS = 60_000;

/** A fleet of the servers `a`, which places, and `b` and `c`; the first of `order` that there is has the most room. */
async function openFleet(context: TestContext) {
  const directory = await mkdtemp(join(tmpdir(), "coppice-test-"));
  const clock = fakeClock();
  const path = join(directory, "fleet.sqlite");
  const monotonic = (): number => clock.now();
  const store = new SqliteStore({ path, clock, monotonic, pollMs: 5, keptRevisions: 100 });
  context.after(async () => {
    await store.close();
    await rm(directory, { recursive: true });
  });
  const nodes = new Map<string, NodeRecord>();
  for (const name of ["a", "b", "c"]) {
    nodes.set(name, { memoryMiB: 1024, secret: "s" } as NodeRecord);
    await store.commit([], [{ put: NODES + name, value: "{}" }]);
  }
  const cordons = new Map<string, true>();
  const order: string[] = [];
  const offerOf = (name: string) => ({ load: order.indexOf(name) });
  let isMember = true;
  const placement = new FleetPlacement({
    node: "a",
    nodes,
    cordons,
    offer: () => offerOf("a"),
    store,
    requireMember() {
      if (!isMember) throw new Error("no member");
    },
    ask: async (name) => offerOf(name),
    fetchAt: async () => true,
    keyKeptMs: KEPT_MS,
    random: () => 0,
  });
  const choose = (owner: string, key?: string) =>
    placement.choose({
      template: "base",
      timeoutMs: undefined,
      secure: false,
      owner,
      ...(key !== undefined && { idempotency: { key, fingerprint: "" } }),
    });
  return {
    clock,
    store,
    nodes,
    cordons,
    choose,
    leave: () => void (isMember = false),
    prefer: (...names: readonly string[]) => void order.splice(0, order.length, ...names),
  };
}

it("a key leads its tenant to the same server again, and no other tenant; for as long as it is remembered", async (context) => {
  const { choose, prefer, clock } = await openFleet(context);
  prefer("b", "c", "a");
  assert.equal(await choose("one", "key"), "b");
  prefer("c", "b", "a");
  assert.equal(await choose("one", "key"), "b");
  assert.equal(await choose("two", "key"), "c");
  assert.equal(await choose("one", "another"), "c");
  assert.equal(await choose("one"), "c");
  await clock.advance(KEPT_MS + 1);
  assert.equal(await choose("one", "key"), "c");
});

it("a key whose server is gone leads to another one, which is the same for all that ask at once", async (context) => {
  const { choose, prefer, nodes, store } = await openFleet(context);
  prefer("b", "c", "a");
  assert.equal(await choose("one", "key"), "b");
  nodes.delete("b");
  await store.commit([], [{ delete: `${NODES}b` }]);
  prefer("c", "a", "b");
  const asked = [choose("one", "key"), choose("one", "key")];
  prefer("a", "c", "b");
  asked.push(choose("one", "key"));
  assert.equal(new Set(await Promise.all(asked)).size, 1);
});

it("a server that is cordoned or no member gives nothing to its own clients", async (context) => {
  const { choose, prefer, cordons, leave } = await openFleet(context);
  prefer("a", "b", "c");
  assert.equal(await choose("one"), undefined);
  cordons.set("a", true);
  assert.equal(await choose("one"), "b");
  cordons.set("b", true);
  assert.equal(await choose("one"), "c");
  leave();
  await assert.rejects(choose("one"), /no member/);
});
