import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { reasonWithoutFreebsdHost } from "../harness/freebsd/freebsd-host.js";
import { type FaultScene, FaultyHost } from "../harness/freebsd/jail-faults.js";

describe("a jail in the stack of a host that fails", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  let host: FaultyHost;

  before(async () => {
    host = await FaultyHost.open({ isConnected: true, networkKind: "alias", release: 14 });
  });
  after(() => host[Symbol.asyncDispose]());

  it("leaves no address and no anchor after a restart, wherever between two commands its server stopped", async () => {
    const act = async (scene: FaultScene) => {
      const sandbox = await scene.make();
      await sandbox.networking?.restrict({ allowOut: [], denyOut: ["203.0.113.2"] });
      await sandbox.destroy();
    };
    const failures = await host.failAtEach("dead", { act });
    assert.ok(failures >= 12, `no more than ${failures} commands were made to fail`);
    await host.checkDecoys();
  });
});
