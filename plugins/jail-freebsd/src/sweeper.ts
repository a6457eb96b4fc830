import type { Clock, Logger } from "@coppice/core";

export interface SweeperOptions {
  readonly clock: Clock;
  readonly everyMs: number;
  readonly sweep: () => Promise<void>;
  readonly log: Pick<Logger, "warn">;
}

/** Repeats a sweep at an interval, never two at once. */
export class Sweeper {
  readonly #options: SweeperOptions;
  #cancel: (() => void) | undefined;
  #sweeping: Promise<void> = Promise.resolve();
  #isStopped = false;

  constructor(options: SweeperOptions) {
    this.#options = options;
  }

  start(): void {
    const { clock, everyMs } = this.#options;
    this.#cancel = clock.after(everyMs, () => {
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
    const { log, sweep } = this.#options;
    await sweep().catch((error: unknown) => {
      log.warn({ err: error }, "sweep for abandoned sandboxes failed");
    });
    if (!this.#isStopped) this.start();
  }
}
