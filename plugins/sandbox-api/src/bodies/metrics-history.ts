import {
  type Clock,
  fulfilledWithin,
  type LiveSandbox,
  type Logger,
  messageOf,
  type Sandboxes,
} from "@coppice/core";
import type { Stats } from "@coppice/core/backend";

export interface Sample {
  /** Milliseconds since the Unix epoch. */
  readonly atMs: number;
  readonly stats: Stats;
}

export interface MetricsHistoryOptions {
  readonly sandboxes: Pick<Sandboxes, "list">;
  readonly clock: Clock;
  readonly log: Logger;
  /** Time between the starts of two rounds of samples. */
  readonly intervalMs: number;
  /** Number of samples of each sandbox. */
  readonly kept: number;
}

// Backends read files and measure disks for it: few at a time, so that requests are not delayed.
const CONCURRENCY = 4;

/**
 * Resource usage of running sandboxes, sampled at an interval. One timer serves all; nothing is kept across a restart.
 */
export class MetricsHistory {
  readonly #options: MetricsHistoryOptions;
  readonly #samples = new WeakMap<LiveSandbox, Sample[]>();
  /** Running measurements: a hanging one is not repeated. */
  readonly #asked = new WeakMap<LiveSandbox, Promise<void>>();
  #isSampling = false;
  #takeBack: (() => void) | undefined;

  constructor(options: MetricsHistoryOptions) {
    this.#options = options;
  }

  start(): void {
    const { clock, intervalMs } = this.#options;
    this.#takeBack = clock.after(intervalMs, () => {
      this.start();
      // A slow round is not overtaken by the next one.
      if (!this.#isSampling) void this.#sampleAll();
    });
  }

  stop(): void {
    this.#takeBack?.();
  }

  /** Samples of a sandbox, oldest first. One without any is measured at once. Never rejects. */
  async of(sandbox: LiveSandbox): Promise<readonly Sample[]> {
    const known = this.#samples.get(sandbox);
    if (known !== undefined) return known;
    await this.#sample(sandbox);
    return this.#samples.get(sandbox) ?? [];
  }

  async #sampleAll(): Promise<void> {
    this.#isSampling = true;
    const waiting = this.#options.sandboxes
      .list()
      .filter((sandbox) => sandbox.record.state === "running" && !this.#asked.has(sandbox))
      .values();
    const next = async (): Promise<void> => {
      for (const sandbox of waiting) await this.#sample(sandbox);
    };
    await Promise.all(Array.from({ length: CONCURRENCY }, next));
    this.#isSampling = false;
  }

  /** Takes a sample, for an interval at most. */
  async #sample(sandbox: LiveSandbox): Promise<void> {
    const { clock, intervalMs } = this.#options;
    let asking = this.#asked.get(sandbox);
    if (asking === undefined) {
      asking = this.#ask(sandbox).finally(() => this.#asked.delete(sandbox));
      this.#asked.set(sandbox, asking);
    }
    await fulfilledWithin(asking, { clock, timeoutMs: intervalMs });
  }

  async #ask(sandbox: LiveSandbox): Promise<void> {
    const { clock, kept, log } = this.#options;
    try {
      const stats = await sandbox.stats();
      const samples = this.#samples.get(sandbox) ?? [];
      samples.push({ atMs: clock.now(), stats });
      if (samples.length > kept) samples.shift();
      this.#samples.set(sandbox, samples);
    } catch (error) {
      // Usually a sandbox that has just ended.
      log.debug({ sandbox: sandbox.record.id, reason: messageOf(error) }, "a sandbox could not be sampled");
    }
  }
}
