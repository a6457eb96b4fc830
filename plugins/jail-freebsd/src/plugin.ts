import { Clock, definePlugin, type Logger } from "@coppice/core";
import { AddressLeases, Backends } from "@coppice/core/backend";
import { diagnoseHost } from "./diagnose-host.js";
import { JailBackend } from "./jail-backend.js";
import { jailFreebsdConfig } from "./jail-freebsd-config.js";
import { REASONS } from "./reasons.js";

/** Interval of the removal of failed sandboxes' remains. */
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
    const sweeper = new Sweeper(backend, clock, plugin.log);
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

/** Repeats a sweep at an interval, never two at once. */
class Sweeper {
  readonly #backend: JailBackend;
  readonly #clock: Clock;
  readonly #log: Logger;
  #cancel: (() => void) | undefined;
  #sweeping: Promise<void> = Promise.resolve();
  #isStopped = false;

  constructor(backend: JailBackend, clock: Clock, log: Logger) {
    this.#backend = backend;
    this.#clock = clock;
    this.#log = log;
  }

  start(): void {
    this.#cancel = this.#clock.after(SWEEP_EVERY_MS, () => {
      this.#sweeping = this.#sweep();
    });
  }

  /** Resolves when the current sweep has ended. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancel?.();
    await this.#sweeping;
  }

  async #sweep(): Promise<void> {
    await this.#backend.sweep().catch((error: unknown) => {
      this.#log.warn({ err: error }, "sweep for abandoned sandboxes failed");
    });
    if (!this.#isStopped) this.start();
  }
}
