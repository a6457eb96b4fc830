import { AddressLeases, Backends, Clock, definePlugin } from "@coppice/core";
import { diagnoseHost } from "./diagnose-host.js";
import { JailBackend } from "./jail-backend.js";
import { jailFreebsdConfig } from "./jail-freebsd-config.js";
import { Sweeper } from "./sweeper.js";
import { templateBuild } from "./templates/template-build.js";
import { templateGc } from "./templates/template-gc.js";
import { templateList } from "./templates/template-list.js";

/** Backend for FreeBSD hosts. Each sandbox is a jail on a clone of a template's ZFS snapshot. */
export const plugin = definePlugin({
  name: "jail-freebsd",
  config: jailFreebsdConfig,
  requires: { backends: Backends, leases: AddressLeases, clock: Clock },
  verbs: { "jail-template": { build: templateBuild, list: templateList, gc: templateGc } },
  setup(plugin, { backends, leases, clock }) {
    const backend = new JailBackend({ settings: plugin.config, leases, log: plugin.log });
    plugin.onStop(() => backend.close());
    backends.add(backend);
    const sweeper = new Sweeper({
      clock,
      everyMs: plugin.config.sweepEvery,
      sweep: () => backend.sweep(),
      log: plugin.log,
    });
    plugin.onStart(() => {
      sweeper.start();
      // Registered here so that the sweeper stops before the ledger closes, which it reads.
      plugin.onStop(() => sweeper.stop());
    });
    plugin.health("jail-freebsd", async () => {
      backend.health();
      const limits = await backend.enforcedLimits();
      return limits && Object.fromEntries(limits.map(({ name, how }) => [name, how]));
    });
    plugin.diagnose("jail-freebsd", async (examination) => diagnoseHost(plugin.config, backend, examination));
  },
});
