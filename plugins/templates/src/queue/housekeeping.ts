import type { Clock, Logger } from "@coppice/core";
import type { ImageKeeper } from "../store/image-keeper.js";
import type { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import type { Uploads } from "../uploads/uploads.js";

export interface HousekeepingOptions {
  readonly store: () => TemplatesStore;
  readonly uploads: Uploads;
  readonly keeper: ImageKeeper;
  readonly settings: Pick<TemplatesConfig, "layersKept" | "waitingTimeout">;
  readonly clock: Clock;
  readonly log: Logger;
}

const INTERVAL_MS = 5 * 60_000;

/** Removes now and then what has not been used for long, and what could not be removed before. */
export function housekeeping({ store, uploads, keeper, settings, clock, log }: HousekeepingOptions) {
  let disarm: (() => void) | undefined;
  let running: Promise<void> = Promise.resolve();
  const run = async (): Promise<void> => {
    const nowMs = clock.now();
    store().builds.failWaiting(nowMs - settings.waitingTimeout, nowMs);
    const unused = { usedAtMs: { "<": nowMs - settings.layersKept } };
    store().layers.remove(unused);
    store().copies.remove(unused);
    await uploads.sweep();
    await keeper.sweep();
  };
  const arm = (): void => {
    disarm = clock.after(INTERVAL_MS, () => {
      running = run()
        .catch((error: unknown) => log.error({ err: error }, "old files of templates were not removed"))
        .then(() => {
          if (disarm !== undefined) arm();
        });
    });
  };
  return {
    start: arm,
    /** Resolves when nothing is being removed. */
    async stop(): Promise<void> {
      disarm?.();
      disarm = undefined;
      await running;
    },
  };
}
