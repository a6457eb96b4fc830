import assert from "node:assert/strict";
import { describe, it } from "node:test";
import type { Sandbox, SandboxBackend } from "@coppice/core/backend";
import {
  type FreebsdHost,
  openFreebsdHost,
  reasonWithoutFreebsdHost,
} from "../harness/freebsd/freebsd-host.js";
import { newId } from "../harness/freebsd/jail-faults.js";
import { reachesOut } from "../harness/freebsd/reaches-out.js";

async function make(backend: SandboxBackend): Promise<Sandbox> {
  const spec = { id: newId(), template: "base", limits: {}, allowInternetAccess: true };
  return backend.provision(spec, new AbortController().signal);
}

/** Removes a jail and its dataset, and nothing else that belongs to it. */
async function takeAway(host: FreebsdHost, name: string): Promise<void> {
  const { programs } = host.settings;
  await host.run(programs.jail, "-q", "-R", name);
  const points = (await host.run(programs.mount, "-p")).split("\n").map((line) => line.split(" ")[1] ?? "");
  const below = points.filter((point) => point.includes(`/${name}/`)).toReversed();
  for (const point of below) await host.run(programs.umount, "-f", point);
  await host.run(programs.zfs, "unmount", "-f", `coppice/jails/${name}`);
  await host.run(programs.zfs, "destroy", `coppice/jails/${name}`);
}

describe("a sweep of jail-freebsd", { skip: reasonWithoutFreebsdHost() ?? false }, () => {
  for (const networkKind of ["vnet", "alias"] as const) {
    it(`removes a network whose dataset is gone, and nobody else's: ${networkKind}`, async () => {
      await using host = await openFreebsdHost({ isConnected: true, networkKind });
      const backend = host.backend();
      await backend.recover();
      const kept = await make(backend);
      const before = await host.leaks();

      const other = host.backend();
      const lost = await make(other);
      await other.close();
      await takeAway(host, `e2b-${lost.id}`);
      const left = (await host.leaks()).filter((leak) => !before.includes(leak));
      for (const kind of [/^anchor /, networkKind === "vnet" ? /epair/ : /^alias /]) {
        assert.ok(
          left.some((leak) => kind.test(leak)),
          `there is no ${kind} to be removed: ${left.join("; ")}`,
        );
      }
      await backend.sweep();
      assert.deepEqual(await host.leaks(), before);
      assert.ok(await reachesOut(kept), "the sandbox of somebody else is not connected any more");
      await kept.destroy();
      assert.deepEqual(await host.leaks(), []);
      await backend.close();
    });
  }
});
