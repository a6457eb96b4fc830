import assert from "node:assert/strict";
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, it } from "node:test";
import type { SandboxBackend } from "@coppice/core/backend";
import { openFreebsdHost, reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import { type FaultyAct, FaultyHost, newId } from "../../harness/freebsd/jail-faults.js";
import { ALL_VARIANTS, hostTitle, NETWORK_HOSTS } from "../../harness/freebsd/network-hosts.js";
import { reachesOut } from "../../harness/freebsd/reaches-out.js";

function specOf(id: string) {
  return { id, template: "base", limits: {}, allowInternetAccess: true };
}

async function make(backend: SandboxBackend) {
  return backend.provision(specOf(newId()), new AbortController().signal);
}

/** A life with a snapshot and a stop, in which the host goes down. */
const life: FaultyAct<undefined> = {
  isRebooted: true,
  stride: ALL_VARIANTS ? 1 : 4,
  act: async (scene) => {
    const sandbox = await scene.make();
    await sandbox.snapshots?.take(newId());
    await sandbox.stopping?.stop();
    await sandbox.stopping?.start(specOf(sandbox.id), new AbortController().signal);
    await sandbox.destroy();
  },
};

describe("jail-freebsd, after a reboot of its host", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  for (const options of NETWORK_HOSTS) {
    it(`keeps stopped sandboxes and removes the others: ${hostTitle(options)}`, async () => {
      await using host = await openFreebsdHost({ isConnected: true, ...options });
      const first = host.backend();
      await first.recover();
      const [stopped, lost, broken] = [await make(first), await make(first), await make(first)];
      await stopped.files.write(
        "/home/user/file",
        (async function* () {
          yield Buffer.from("kept");
        })(),
      );
      await stopped.stopping?.stop();
      await first.close();
      await host.reboot();
      // Its mount point cannot be removed.
      const inTheWay = join(host.settings.directory, "roots", `e2b-${broken.id}`, "file");
      await writeFile(inTheWay, "");
      assert.ok((await host.leaks()).some((leak) => leak === `dataset coppice/jails/e2b-${lost.id}`));

      const second = host.backend();
      const found = await second.recover();
      assert.deepEqual(
        found.map(({ id }) => id),
        [stopped.id],
      );
      const left = (await host.leaks()).filter((leak) => !leak.includes(stopped.id));
      assert.ok(left.length > 0 && left.every((leak) => leak.includes(broken.id)), left.join("\n"));
      await found[0]?.stopping?.start(specOf(stopped.id), new AbortController().signal);
      assert.ok(found[0] && (await reachesOut(found[0])));
      const fresh = await make(second);
      assert.ok(await reachesOut(fresh));

      await rm(inTheWay);
      await second.sweep();
      for (const sandbox of [...found, fresh]) await sandbox.destroy();
      assert.deepEqual(await host.leaks(), []);
      await second.close();
    });
  }

  it("leaves nothing, wherever in the life of a sandbox it began", async () => {
    await using host = await FaultyHost.open({ isConnected: true });
    assert.ok((await host.failAtEach("dead", life)) >= 45);
  });
});
