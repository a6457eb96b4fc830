import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { reasonWithoutFreebsdHost } from "../harness/freebsd/freebsd-host.js";
import { type FaultScene, FaultyHost } from "../harness/freebsd/jail-faults.js";

async function act(scene: FaultScene): Promise<void> {
  const sandbox = await scene.make();
  await sandbox.networking?.restrict({ allowOut: [], denyOut: ["203.0.113.2"] });
  await sandbox.destroy();
}

describe("a jail in the stack of a host that fails", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  for (const release of [14, 15] as const) {
    it(`leaves no address and no anchor after a restart, wherever its server stopped: pfctl(8) of ${release}`, async () => {
      await using host = await FaultyHost.open({ isConnected: true, networkKind: "alias", release });
      const failures = await host.failAtEach("dead", { act });
      assert.ok(failures >= 12, `no more than ${failures} commands were made to fail`);
      await host.checkDecoys();
    });
  }
});
