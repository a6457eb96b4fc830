import { Clock, definePlugin } from "@coppice/core";
import { AddressLeases, Backends } from "@coppice/core/backend";
import { diagnoseHost } from "./diagnose-host.js";
import { JailBackend } from "./jail-backend.js";
import { jailFreebsdConfig } from "./jail-freebsd-config.js";
import { REASONS } from "./reasons.js";

const SWEEP_EVERY_MS = 60_000;

/** Backend for FreeBSD hosts. Each sandbox is a jail on a clone of a template's ZFS snapshot. */
export const plugin = definePlugin({
  name: "jail-freebsd",
  reasons: REASONS,
  config: jailFreebsdConfig,
  requires: { backends: Backends, leases: AddressLeases, clock: Clock },
  setup(plugin, { backends, leases, clock }) {
    const backend = new JailBackend({ settings: plugin.config, leases, log: plugin.log });
    plugin.onStop(() => backend.close());
    backends.add(backend);
    const failed = (err: unknown): void => plugin.log.warn({ err }, "sweep for abandoned sandboxes failed");
    plugin.onStart(() => {
      let cancel: (() => void) | undefined;
      let sweeping = Promise.resolve();
      let isStopped = false;
      // Never two at once.
      const sweepLater = (): void => {
        cancel = clock.after(SWEEP_EVERY_MS, () => {
          sweeping = backend
            .sweep()
            .catch(failed)
            .then(() => (isStopped ? undefined : sweepLater()));
        });
      };
      sweepLater();
      // Registered here so that sweeps stop before the ledger closes, which they read.
      plugin.onStop(async () => {
        isStopped = true;
        cancel?.();
        await sweeping;
      });
    });
    plugin.health("jail-freebsd", async () => {
      backend.health();
      const limits = await backend.enforcedLimits();
      return limits && Object.fromEntries(limits.map(({ name, how }) => [name, how]));
    });
    plugin.diagnose("jail-freebsd", async (examination) => diagnoseHost(plugin.config, backend, examination));
  },
});
