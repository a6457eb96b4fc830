import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";
import { commandScenarios } from "../sdk/command-scenarios.js";
import { fileScenarios } from "../sdk/file-scenarios.js";

describe("a server of a fleet, for the sandboxes of another one", { skip: reasonWithoutEtcd() }, () => {
  let etcd: Cluster;
  let fleet: Fleet;
  let sandbox: Sandbox;
  const urlOf = (index: number): string => fleet.servers[index]?.url ?? "";

  before(async () => {
    etcd = await startEtcd();
    fleet = await startFleet({ count: 2, store: { etcd: { endpoints: etcd.endpoints } } });
    pointSdkAt(urlOf(0));
    const made = await Sandbox.create();
    // From now on every request goes to the server that has nothing of it.
    pointSdkAt(urlOf(1));
    sandbox = await Sandbox.connect(made.sandboxId);
  });
  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await etcd[Symbol.asyncDispose]();
  });

  describe("runs commands", () => commandScenarios(() => sandbox));
  describe("serves files", () => fileScenarios(() => sandbox));

  it("tells what the other server knows, and passes changes on", async () => {
    const info = await Sandbox.getInfo(sandbox.sandboxId);
    assert.equal(info.sandboxId, sandbox.sandboxId);
    await Sandbox.setTimeout(sandbox.sandboxId, 60_000);
    await Sandbox.kill(sandbox.sandboxId);
    pointSdkAt(urlOf(0));
    await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), /not found/);
    pointSdkAt(urlOf(1));
    await assert.rejects(Sandbox.getInfo(sandbox.sandboxId), /not found/);
  });
});
