import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { eventually, WITHOUT_SMALL_ROOT } from "@coppice/core/testing";
import { reasonWithoutEtcd } from "@coppice/plugin-fleet/testing";
import { Sandbox, Template } from "e2b";
import { startCoppice } from "../../harness/server/coppice-command.js";
import { missingForNamespaces } from "../../harness/server/on-each-backend.js";
import { pointSdkAt } from "../../harness/server/point-sdk-at.js";
import { SharingServers } from "../../harness/server/sharing-servers.js";

const skip = reasonWithoutEtcd() || missingForNamespaces() || WITHOUT_SMALL_ROOT;
const COUNTING =
  "i=0; while :; do i=$((i+1)); echo $i > /home/user/next; mv /home/user/next /home/user/count; sleep 0.05; done";

describe("a move whose servers are killed", { skip, timeout: 280_000 }, () => {
  let servers: SharingServers;
  let sandbox: Sandbox;

  const fleet = (action: string, ...words: readonly string[]) =>
    startCoppice(["fleet", action, servers.configFile(0), ...words]);
  const grows = async (): Promise<boolean> => {
    const before = Number(await sandbox.files.read("count"));
    await sandbox.commands.run("sleep 0.3");
    return Number(await sandbox.files.read("count")) > before;
  };
  /** Records of sandboxes that are not lost, by server. */
  const recorded = async (node: string): Promise<number> =>
    (await servers.values("sandboxes/")).filter(
      (text) => text.includes(`"node":"${node}"`) && !text.includes("lostAtMs"),
    ).length;
  /** Snapshots that are lent. */
  const lent = async (): Promise<number> =>
    (await servers.values("templates/")).filter((text) => text.includes("snapshotOf")).length;

  before(async () => {
    // On a busy machine a start takes longer than a short lease, and the paused sandbox would be lost.
    servers = await SharingServers.start({ lease: "60s" });
    pointSdkAt(servers.url(0));
    // The second server is at it for a while: the file is in no snapshot.
    const slow = Template()
      .fromImage("small")
      .setStartCmd("sleep 4; touch /dev/shm/started; sleep 600", "[ -f /dev/shm/started ]");
    await Template.build(slow, "slow");
    await fleet("cordon", "node1").end;
    sandbox = await Sandbox.create("slow", { timeoutMs: 600_000 });
    await sandbox.commands.run(COUNTING, { background: true, timeoutMs: 0 });
    await fleet("uncordon", "node1").end;
  });
  after(() => servers[Symbol.asyncDispose]());

  it("leaves the sandbox running when the server that is to have it is lost", async () => {
    const draining = fleet("drain", "node0", "--move");
    await eventually("the new sandbox", async () => (await recorded("node1")) === 1);
    await servers.kill(1);
    const { code, stdout } = await draining.end;
    assert.equal(code, 1);
    assert.match(stdout.toString(), new RegExp(`^${sandbox.sandboxId} stays on 'node0'`, "m"));
    assert.ok(await grows());
    await servers.restart(1);
    await eventually("nothing is left of the new one", async () => (await recorded("node1")) === 0);
    assert.deepEqual([await recorded("node0"), await lent()], [1, 0]);
  });

  it("leaves it paused, with its processes, when its own server is killed; nothing else is left", async () => {
    const draining = fleet("drain", "node0", "--move");
    await eventually("the new sandbox", async () => (await recorded("node1")) === 1);
    await servers.kill(0);
    assert.equal((await draining.end).code, 1);
    await eventually("the new one is given up", async () => (await recorded("node1")) === 0);
    await servers.restart(0);
    pointSdkAt(servers.url(0));
    assert.equal((await Sandbox.getInfo(sandbox.sandboxId)).state, "paused");
    sandbox = await Sandbox.connect(sandbox.sandboxId);
    assert.ok(await grows());
    await eventually("nothing is lent", async () => (await lent()) === 0);
  });

  it("succeeds at the next attempt", async () => {
    const { code, stdout } = await fleet("drain", "node0", "--move").end;
    assert.equal(code, 0, stdout.toString());
    assert.deepEqual([await recorded("node0"), await recorded("node1")], [0, 1]);
  });
});
