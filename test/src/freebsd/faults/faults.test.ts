import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { ALL_TRAFFIC } from "@coppice/core/backend";
import { reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import type { Fault } from "../../harness/freebsd/failing-programs.js";
import { FaultScene, FaultyHost } from "../../harness/freebsd/jail-faults.js";

const skip = reasonWithoutFreebsdHost() ?? false;

describe("a connected jail, on a host that fails", { skip }, () => {
  let host: FaultyHost;

  before(async () => {
    host = await FaultyHost.open({ isConnected: true });
  });
  after(() => host[Symbol.asyncDispose]());

  it("leaves a jail that could not be connected without a network, once its old rules are in force again", async () => {
    const scene = new FaultScene(await host.serve());
    const closed = { allowOut: [], denyOut: [ALL_TRAFFIC] };
    const sandbox = await scene.make({ allowInternetAccess: false });
    const links = async () => (await host.decoys.leaks()).filter((leak) => / epair\d+a@/.test(leak)).length;
    // The last command notes that all is done.
    await host.failing.arm("once", 10);
    await assert.rejects(async () => sandbox.networking?.restrict({ allowOut: [], denyOut: [] }));
    assert.ok(await host.failing.heal());
    assert.equal(await links(), 1);
    await sandbox.networking?.restrict(closed);
    assert.equal(await links(), 0);
    await sandbox.networking?.restrict({ allowOut: [], denyOut: [] });
    assert.equal(await links(), 1);
    await scene.end();
    assert.deepEqual(await host.decoys.leaks(), []);
    await scene.backend.close();
  });

  it("kills a command that takes too long, and leaves nothing of what it was for", async () => {
    const scene = new FaultScene(await host.serve({ hostCommandTimeout: 3_000 }));
    await host.failing.arm("hang", 2);
    await assert.rejects(scene.make(), {
      code: "deadline_exceeded",
      message: /^\w+ took more than [\d.]+ ms$/,
    });
    assert.ok(await host.failing.heal());
    await scene.backend.sweep();
    assert.deepEqual(await host.decoys.leaks(), []);
    assert.doesNotMatch(await host.host.run("/bin/ps", "-ef"), /sleep 600/);
    await scene.backend.close();
  });

  it("gives no address to two, and loses none, where it is not known whether a dataset was made", async () => {
    const network = { ...host.host.settings.network, range: "10.78.0.0/28" };
    const scene = new FaultScene(await host.serve({ network }));
    // The first command is the clone.
    const failToClone = async (fault: Fault) => {
      await host.failing.arm(fault, 0);
      await assert.rejects(scene.make());
      assert.ok(await host.failing.heal());
    };
    for (let round = 0; round < 5; round++) {
      await failToClone("dead");
      await scene.backend.sweep();
    }
    await failToClone("late");
    const links = async () => (await host.decoys.leaks()).filter((leak) => / epair\d+a@/.test(leak)).length;
    // The range has five addresses for sandboxes.
    for (let count = 1; count <= 5; count++) {
      await scene.make();
      assert.equal(await links(), count);
    }
    await assert.rejects(scene.make(), { code: "resource_exhausted" });
    await scene.backend.sweep();
    assert.equal(await links(), 5);
    await scene.end();
    assert.deepEqual(await host.decoys.leaks(), []);
    await scene.backend.close();
  });
});
