import type { Clock, Logger } from "@coppice/core";

export interface SweeperOptions {
  readonly clock: Clock;
  readonly everyMs: number;
  readonly sweep: () => Promise<void>;
  readonly log: Pick<Logger, "warn">;
}

/** Sweeps again and again, one sweep after the other. */
export class Sweeper {
  readonly #options: SweeperOptions;
  #takeBack: (() => void) | undefined;
  #sweeping: Promise<void> = Promise.resolve();
  #isStopped = false;

  constructor(options: SweeperOptions) {
    this.#options = options;
  }

  start(): void {
    const { clock, everyMs } = this.#options;
    this.#takeBack = clock.after(everyMs, () => {
      this.#sweeping = this.#sweep();
    });
  }

  /** Resolves when the sweep that is under way has ended. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#takeBack?.();
    await this.#sweeping;
  }

  async #sweep(): Promise<void> {
    const { log, sweep } = this.#options;
    await sweep().catch((error: unknown) => {
      log.warn({ err: error }, "what is left of sandboxes could not be looked for");
    });
    if (!this.#isStopped) this.start();
  }
}
