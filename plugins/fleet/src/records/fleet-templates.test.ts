import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { systemClock } from "@coppice/core";
import { eventually } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { NODES, nodeOf, nodeText } from "../membership/node-record.js";
import type { FleetStore } from "../store/fleet-store.js";
import { KeyView } from "../store/key-view.js";
import { openStore } from "../store/open-store.js";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "../testing/start-etcd.js";
import { FleetTemplates } from "./fleet-templates.js";

const secrets = new FleetSecrets({ secret: "s".repeat(32) });
const LOG = { debug: () => {}, error: () => {} };

function cases(storeOf: () => object): void {
  let store: FleetStore;
  let nodes: KeyView<NonNullable<ReturnType<typeof nodeOf>>>;
  const all: FleetTemplates[] = [];

  const enter = async (node: string, stoppedAtMs?: number) => {
    const facts = {
      identity: node,
      address: "http://127.0.0.1:1",
      version: "0.0.0",
      joinedAtMs: 1,
      stoppedAtMs,
    };
    await store.commit([], [{ put: NODES + node, value: nodeText(node, facts, secrets) }]);
  };
  const templatesOf = async (node: string): Promise<FleetTemplates> => {
    const key = NODES + node;
    const revision = (await store.get(key))?.modRevision ?? 0;
    const membership = { check: { key, modRevision: revision } };
    const made = new FleetTemplates({ store, membership, node, nodes, keptMs: 1000, log: LOG });
    await made.start();
    all.push(made);
    return made;
  };

  before(async () => {
    const settings = { address: "http://127.0.0.1:1", secret: "s".repeat(32), ...storeOf() };
    store = openStore(fleetConfig.parse(settings), systemClock);
    for (const node of ["a", "b"]) await enter(node);
    nodes = new KeyView({ store, prefix: NODES, parse: (entry) => nodeOf(entry, secrets), log: LOG });
    await nodes.start();
  });
  after(async () => {
    for (const one of [...all, nodes]) await one.stop();
    await store.close();
  });

  it("one server keeps a template; another one only after the first is gone, and the first not again then", async () => {
    const [a, b] = [await templatesOf("a"), await templatesOf("b")];
    await a.put("t", "one", undefined);
    await assert.rejects(b.put("t", "stolen", undefined), { reason: "fleet_unavailable" });
    const known = await b.read("t");
    assert.deepEqual([known?.value, known?.keeper], ["one", "other"]);
    await assert.rejects(b.put("t", "stolen", known), { reason: "fleet_unavailable" });
    // Stopped, and expected back.
    await enter("a", 2);
    await assert.rejects(b.put("t", "stolen", known), { reason: "fleet_unavailable" });
    await store.commit([], [{ delete: `${NODES}a` }]);
    await eventually("the loss of a", () => nodes.get("a") === undefined);
    await b.put("t", "two", await b.read("t"));
    await eventually("another keeper", () => a.get("t")?.keeper === "other");

    const late = await a.read("t");
    await assert.rejects(a.put("t", "late", late), { reason: "fleet_unavailable" }, "its place is lost");
    await enter("a");
    const again = await templatesOf("a");
    await assert.rejects(again.put("t", "late", late), { reason: "fleet_unavailable" });
    assert.equal((await a.read("t"))?.value, "two");
  });

  it("of two changes of what was read one is made", async () => {
    const [b, other] = [await templatesOf("b"), await templatesOf("b")];
    const known = await b.read("t");
    const ends = await Promise.allSettled([b.put("t", "three", known), other.put("t", "four", known)]);
    assert.deepEqual(ends.map(({ status }) => status).toSorted(), ["fulfilled", "rejected"]);
  });

  it("a removal is told for a while", async () => {
    const b = await templatesOf("b");
    await b.put("t", undefined, await b.read("t"));
    const told = await b.read("t");
    assert.deepEqual([told?.value, told?.keeper], [undefined, "self"]);
    await eventually("its removal", () => b.get("t") === undefined);
    assert.equal(await b.read("t"), undefined);
  });
}

describe("the templates of a fleet, on SQLite", () => {
  let directory: string;
  before(async () => (directory = await mkdtemp(join(tmpdir(), "coppice-test-"))));
  after(() => rm(directory, { recursive: true }));
  cases(() => ({ file: join(directory, "fleet.sqlite") }));
});

describe("the templates of a fleet, on etcd", { skip: reasonWithoutEtcd() }, () => {
  let etcd: Cluster;
  before(async () => (etcd = await startEtcd()));
  after(() => etcd[Symbol.asyncDispose]());
  cases(() => ({ etcd: { endpoints: etcd.endpoints } }));
});
