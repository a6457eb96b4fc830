import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { reasonWithoutFreebsdHost } from "../harness/freebsd-host.js";
import { FaultyHost, type FaultScene } from "../harness/jail-faults.js";

const skip = reasonWithoutFreebsdHost() ?? false;

async function make(scene: FaultScene): Promise<void> {
  await scene.make();
}

async function live(scene: FaultScene): Promise<void> {
  const sandbox = await scene.make();
  await sandbox.networking?.restrict({ allowOut: [], denyOut: ["203.0.113.2"] });
  await sandbox.destroy();
}

void describe("a connected jail, on a host that fails", { skip }, () => {
  let host: FaultyHost;

  before(async () => {
    host = await FaultyHost.open({ isConnected: true });
  });
  after(() => host[Symbol.asyncDispose]());

  it("leaves nothing after a restart, wherever between two commands its server stopped", async () => {
    assert.ok((await host.failAtEach("dead", { act: live })) >= 25);
    await host.checkDecoys();
  });

  it("leaves nothing when one command fails, or has done its work and says that it failed", async () => {
    assert.ok((await host.failAtEach("once", { act: live })) >= 25);
    assert.ok((await host.failAtEach("late", { act: make })) >= 15);
    await host.checkDecoys();
  });
});
