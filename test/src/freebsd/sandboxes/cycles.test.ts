import assert from "node:assert/strict";
import { it } from "node:test";
import { plantDecoys } from "../../harness/freebsd/decoys.js";
import { openFreebsdHost, reasonWithoutFreebsdHost } from "../../harness/freebsd/freebsd-host.js";
import {
  ALL_VARIANTS,
  hostTitle,
  NETWORK_HOSTS,
  UNCONNECTED_HOST,
} from "../../harness/freebsd/network-hosts.js";

/** Enough for what leaks each time or mostly, and for what another sandbox's end takes; `COPPICE_TEST_CYCLES` gives another number. */
const CYCLES = Number(process.env["COPPICE_TEST_CYCLES"] ?? (ALL_VARIANTS ? 300 : 100));
const AT_ONCE = 4;
/** With an epair(4) every so many one is connected: that takes twice as many commands. */
const CONNECTED_EACH = 5;
const FEW = Math.ceil(CYCLES / 10);

for (const [number, options] of [...NETWORK_HOSTS, UNCONNECTED_HOST].entries()) {
  const cycles = number === 0 || ALL_VARIANTS ? CYCLES : FEW;
  it(
    `${cycles} jails that come and go, ${AT_ONCE} side by side, leave nothing and touch nothing of others: ${hostTitle(options)}`,
    { skip: reasonWithoutFreebsdHost() ?? false },
    async () => {
      await using host = await openFreebsdHost({ isConnected: true, ...options });
      const decoys = await plantDecoys(host);
      const before = await decoys.show();
      const backend = host.backend();
      const numbers = Array.from({ length: cycles }, (_, number) => number).values();
      const cycle = async () => {
        for (const number of numbers) {
          const allowInternetAccess = number % CONNECTED_EACH === 0;
          const spec = { id: `cycle${number}`, template: "base", limits: {}, allowInternetAccess };
          const sandbox = await backend.provision(spec, new AbortController().signal);
          await sandbox.destroy();
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, cycle));
      assert.deepEqual(await decoys.leaks(), []);
      assert.equal(await decoys.show(), before);
      await backend.close();
    },
  );
}
