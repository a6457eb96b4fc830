import type { Clock } from "@coppice/core";

interface FenceOptions {
  readonly clock: Pick<Clock, "now">;
  /** Milliseconds of a clock that nothing sets; `performance.now` by default. */
  readonly monotonic?: () => number;
  /** Part of a lease that is not used, for clocks that run at unlike speeds. */
  readonly marginMs: number;
}

interface Moment {
  readonly wallMs: number;
  readonly monotonicMs: number;
}

/**
 * Whether this server may still act for what the fleet gave it. The lease counts from before its renewal was asked
 * for, so this side is over first, whatever the store's answer took.
 */
export class Fence {
  readonly #options: FenceOptions;
  readonly #monotonic: () => number;
  #until: Moment | undefined;

  constructor(options: FenceOptions) {
    this.#options = options;
    this.#monotonic = options.monotonic ?? (() => performance.now());
  }

  /** Call before a renewal is asked for. */
  moment(): Moment {
    return { wallMs: this.#options.clock.now(), monotonicMs: this.#monotonic() };
  }

  /** Opens it for the length of a lease that was renewed. @param asked from `moment`. */
  extend({ wallMs, monotonicMs }: Moment, ttlMs: number): void {
    const usedMs = ttlMs - this.#options.marginMs;
    this.#until = { wallMs: wallMs + usedMs, monotonicMs: monotonicMs + usedMs };
  }

  close(): void {
    this.#until = undefined;
  }

  /** False also after a stop of this process, and after a sleep of the machine, which the monotonic clock leaves out. */
  get isOpen(): boolean {
    return this.leftMs > 0;
  }

  /** Time until it closes by itself; 0 when it is closed. */
  get leftMs(): number {
    if (this.#until === undefined) return 0;
    const now = this.moment();
    return Math.max(0, Math.min(this.#until.wallMs - now.wallMs, this.#until.monotonicMs - now.monotonicMs));
  }
}
