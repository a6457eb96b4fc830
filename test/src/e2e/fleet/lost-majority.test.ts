import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as pause } from "node:timers/promises";
import { Sandbox } from "e2b";
import { type Cluster, reasonWithoutEtcd, startEtcd } from "@coppice/plugin-fleet/testing";
import { eventually } from "@coppice/core/testing";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { type Fleet, startFleet } from "../../harness/server/start-fleet.js";

const LEASE_MS = 6000;

describe("a fleet whose etcd has lost its majority", { skip: reasonWithoutEtcd(), timeout: 120_000 }, () => {
  let etcd: Cluster;
  let fleet: Fleet;

  before(async () => {
    etcd = await startEtcd({ count: 3 });
    fleet = await startFleet({
      count: 2,
      store: { etcd: { endpoints: etcd.endpoints, timeout: "500ms" }, lease: `${LEASE_MS}ms` },
    });
  });
  after(async () => {
    await fleet[Symbol.asyncDispose]();
    await etcd[Symbol.asyncDispose]();
  });

  it("serves what runs, makes nothing new, and goes on as before when the majority is back", async () => {
    const [first, second] = fleet.servers.map(({ url }) => url);
    pointSdkAt(first ?? "");
    const { sandboxId } = await Sandbox.create();
    const says = async (url: string | undefined): Promise<string> => {
      pointSdkAt(url ?? "");
      const sandbox = await Sandbox.connect(sandboxId);
      return (await sandbox.commands.run("echo here")).stdout;
    };
    assert.equal(await says(second), "here\n");
    const [one, two, three] = etcd.members;
    await one?.kill();
    await two?.kill();
    await pause(2 * LEASE_MS);
    assert.equal(await says(first), "here\n");
    assert.equal(await says(second), "here\n");
    pointSdkAt(first ?? "");
    await assert.rejects(Sandbox.create({ requestTimeoutMs: 20_000 }), /503|unavailable|retry/i);
    // No member is left to say so: it may as well be a firewall that refuses connections.
    await three?.kill();
    await pause(2 * LEASE_MS);
    await assert.rejects(says(first), /503|unavailable|retry|lost its place/i);
    await Promise.all(etcd.members.map((member) => member.start()));
    await eventually("a sandbox can be made", () => Sandbox.create().catch(() => undefined));
    await pause(2 * LEASE_MS);
    assert.equal(await says(second), "here\n");
  });
});
