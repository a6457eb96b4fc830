import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import type { Fault } from "../../harness/freebsd/failing-programs.js";
import { reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import { type FaultScene, type FaultyAct, FaultyHost } from "../../harness/freebsd/jail-faults.js";
import { ALL_VARIANTS, hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";

const skip = reasonWithoutFreebsdHost() ?? false;
const FEWEST_OF_PFCTL = { life: 4, creation: 1 };
const FEWEST = { life: 25, creation: 15 };

async function make(scene: FaultScene): Promise<void> {
  await scene.make();
}

async function live(scene: FaultScene): Promise<void> {
  const sandbox = await scene.make();
  const command = await sandbox.spawn({ path: "/usr/bin/true", args: [], env: {}, input: "none" });
  assert.deepEqual(await command.exit, { code: 0 });
  await sandbox.networking?.restrict({ allowOut: [], denyOut: ["203.0.113.2"] });
  await sandbox.destroy();
}

/**
 * Makes each command of the host fail in the life of a connected jail, and each of pfctl(8) of the earlier release: what
 * differs there is what it finds and leaves in the kernel, which other commands do not change.
 */
for (const options of NETWORK_HOSTS) {
  describe(`a connected jail, on a host that fails: ${hostTitle(options)}`, { skip }, () => {
    const only = options.release === 15 || ALL_VARIANTS ? undefined : "pfctl";
    const fewest = only === undefined ? FEWEST : FEWEST_OF_PFCTL;
    const failAtEach = (fault: Fault, act: FaultyAct<void>["act"]): Promise<number> =>
      host.failAtEach(fault, { act, ...(only && { only }) });
    let host: FaultyHost;

    before(async () => {
      host = await FaultyHost.open({ isConnected: true, ...options });
    });
    after(() => host[Symbol.asyncDispose]());

    it("leaves nothing after a restart, wherever between two commands its server stopped", async () => {
      assert.ok((await failAtEach("dead", live)) >= fewest.life);
      await host.checkDecoys();
    });

    it("leaves nothing when one command fails, or has done its work and says that it failed", async () => {
      assert.ok((await failAtEach("once", live)) >= fewest.life);
      assert.ok((await failAtEach("late", make)) >= fewest.creation);
      await host.checkDecoys();
    });
  });
}
