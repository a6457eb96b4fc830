import { availableParallelism } from "node:os";
import type { Clock } from "../../kernel/clock.js";
import { messageOf } from "../../kernel/errors.js";
import type { Logger } from "../../observe/logger.js";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import type { SandboxesConfig } from "../model/sandboxes-config.js";
import { Counter, Gauge, type Registry } from "prom-client";

/** The settings of one pool; durations in milliseconds. */
type PoolSettings = SandboxesConfig["templates"][string]["pool"];

interface WarmPoolOptions {
  readonly settings: PoolSettings;
  /** Makes one sandbox ready. When it rejects, nothing of that sandbox is left. */
  readonly make: (signal: AbortSignal) => Promise<HeldSandbox>;
  /** Ends a sandbox of the pool; resolves when that is done or failed for now. */
  readonly discard: (held: HeldSandbox) => Promise<void>;
  /** Creators that wait for a sandbox that no pool had, of any template: they get the processors. */
  readonly creators: { readonly waiting: number };
  /** Called for every failed attempt to make one. */
  readonly onFailure: () => void;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Weight of the last one in the average time that making one takes. */
const NEWEST = 0.3;
/** Part of the sandboxes that are kept ready. */
const SHRINKS_BY = 0.25;
const FIRST_RETRY_MS = 1000;
const MAX_RETRY_MS = 60_000;

/**
 * Ready sandboxes of one template. The pool keeps `min` of them; each miss raises the target by one, up to `max`, and a
 * while without misses lowers it again.
 */
class WarmPool {
  readonly #options: WarmPoolOptions;
  readonly #ready: HeldSandbox[] = [];
  readonly #making = new Set<Promise<void>>();
  readonly #closed = new AbortController();
  #kept: number;
  #isFilling = false;
  #makeMs = 0;
  /** When sandboxes were asked for, while one of the pool is made. */
  #askedAtMs: number[] = [];
  #failures = 0;
  /** Last failure since a success. */
  #reason: string | undefined;
  #cancelRetry: (() => void) | undefined;
  #cancelShrinking: (() => void) | undefined;

  constructor(options: WarmPoolOptions) {
    this.#options = options;
    this.#kept = options.settings.min;
  }

  get size(): number {
    return this.#ready.length;
  }

  start(): void {
    this.#isFilling = true;
    this.refill();
  }

  /** The sandbox that waited longest; undefined when there is none. Call `refill` when it has been handed out. */
  take(): HeldSandbox | undefined {
    const held = this.#ready.shift();
    if (held === undefined) this.#grow();
    this.#askedAtMs.push(this.#options.clock.now());
    return held;
  }

  /** Makes missing sandboxes in the background. */
  refill(): void {
    if (!this.#isFilling || this.#cancelRetry !== undefined) return;
    const atOnce = this.#atOnce();
    while (this.#making.size < atOnce && this.#ready.length + this.#making.size < this.#kept) {
      const made = this.#makeOne().finally(() => {
        this.#making.delete(made);
        this.refill();
      });
      this.#making.add(made);
    }
  }

  /** As many as are asked for while one is made: the pool is filled as fast as it is emptied. */
  #atOnce(): number {
    const { creators, settings, clock } = this.#options;
    // Not none: creators that come one after the other would keep the pool empty.
    if (creators.waiting > 0) return 1;
    const sinceMs = clock.now() - this.#makeMs;
    this.#askedAtMs = this.#askedAtMs.filter((atMs) => atMs > sinceMs);
    return settings.refill ?? Math.min(availableParallelism(), this.#askedAtMs.length + 1);
  }

  /** Ends every sandbox of the pool, those that are being made included. */
  async close(): Promise<void> {
    this.#isFilling = false;
    this.#cancelRetry?.();
    this.#cancelShrinking?.();
    this.#closed.abort();
    await Promise.all(this.#making);
    await Promise.all(this.#ready.splice(0).map((held) => this.#options.discard(held)));
  }

  /** Never rejects. */
  async #makeOne(): Promise<void> {
    const { make, discard, onFailure, clock, log } = this.#options;
    const beganMs = clock.now();
    try {
      const held = await make(this.#closed.signal);
      this.#makeMs += (clock.now() - beganMs - this.#makeMs) * (this.#makeMs === 0 ? 1 : NEWEST);
      this.#failures = 0;
      this.#reason = undefined;
      if (this.#closed.signal.aborted) await discard(held);
      else this.#keep(held);
    } catch (error) {
      if (this.#closed.signal.aborted) return;
      onFailure();
      const reason = messageOf(error);
      // Repeated failures for one reason are logged once.
      if (reason !== this.#reason)
        log.warn({ err: error }, "a sandbox for the warm pool could not be made ready; it is tried again");
      this.#reason = reason;
      this.#retryLater();
    }
  }

  #keep(held: HeldSandbox): void {
    this.#ready.push(held);
    held.ended.addEventListener("abort", () => this.#drop(held), { once: true });
  }

  /** Removes a sandbox that ended by itself while it waited. */
  #drop(held: HeldSandbox): void {
    const index = this.#ready.indexOf(held);
    if (index === -1) return;
    this.#ready.splice(index, 1);
    this.#options.onFailure();
    this.#retryLater();
  }

  #retryLater(): void {
    const delayMs = Math.min(FIRST_RETRY_MS * 2 ** this.#failures, MAX_RETRY_MS);
    this.#failures += 1;
    this.#cancelRetry?.();
    this.#cancelRetry = this.#options.clock.after(delayMs, () => {
      this.#cancelRetry = undefined;
      this.refill();
    });
  }

  #grow(): void {
    const { max } = this.#options.settings;
    if (!this.#isFilling || max === undefined) return;
    this.#kept = Math.min(this.#kept + 1, Math.max(max, this.#kept));
    this.#shrinkLater();
  }

  #shrinkLater(): void {
    const { settings, clock, discard } = this.#options;
    this.#cancelShrinking?.();
    this.#cancelShrinking = undefined;
    if (this.#kept <= settings.min) return;
    this.#cancelShrinking = clock.after(settings.shrinkAfter, () => {
      this.#kept = Math.max(settings.min, this.#kept - Math.ceil(this.#kept * SHRINKS_BY));
      const surplus = this.#ready.splice(0, Math.max(0, this.#ready.length - this.#kept));
      // `discard` never rejects: the registry logs a failed end and tries it again.
      for (const held of surplus) void discard(held);
      this.#shrinkLater();
    });
  }
}

export type WarmPools = ReturnType<typeof warmPools>;

/**
 * The warm pools of a server, by template, and their metrics. @param registry receives the metrics
 * `coppice_sandboxes_warm…`.
 */
export function warmPools(registry: Registry) {
  const registers = [registry];
  const pools = new Map<string, WarmPool>();
  const creators = { waiting: 0 };
  new Gauge({
    name: "coppice_sandboxes_warm",
    help: "Sandboxes of warm pools that wait for a creation; not counted among the running ones",
    labelNames: ["template"],
    registers,
    collect() {
      for (const [template, pool] of pools) this.set({ template }, pool.size);
    },
  });
  const takes = new Counter({
    name: "coppice_sandboxes_warm_takes_total",
    help: "Creations that a warm pool could serve, by whether it did (hit, miss, or broken: the one taken did not work)",
    labelNames: ["template", "outcome"],
    registers,
  });
  const failures = new Counter({
    name: "coppice_sandboxes_warm_failures_total",
    help: "Sandboxes for warm pools that could not be made ready",
    labelNames: ["template"],
    registers,
  });
  return {
    add(template: string, options: Omit<WarmPoolOptions, "creators" | "onFailure">): void {
      for (const outcome of ["hit", "miss", "broken"]) takes.inc({ template, outcome }, 0);
      failures.inc({ template }, 0);
      const onFailure = (): void => failures.inc({ template });
      pools.set(template, new WarmPool({ ...options, creators, onFailure }));
    },
    start(): void {
      for (const pool of pools.values()) pool.start();
    },
    /** A ready sandbox; undefined when there is none or no pool. Call `handedOut` with its outcome. */
    take(template: string): HeldSandbox | undefined {
      const pool = pools.get(template);
      const held = pool?.take();
      if (pool !== undefined && held === undefined) takes.inc({ template, outcome: "miss" });
      return held;
    },
    /** Makes fewer sandboxes ready while one is made for its creator, until disposal. */
    yieldToCreator(): Disposable {
      creators.waiting += 1;
      return {
        [Symbol.dispose]() {
          creators.waiting -= 1;
          for (const pool of pools.values()) pool.refill();
        },
      };
    },
    handedOut(template: string, outcome: "hit" | "broken"): void {
      takes.inc({ template, outcome });
      // The answer leaves first: making the next sandbox would delay it.
      setImmediate(() => pools.get(template)?.refill());
    },
    async close(): Promise<void> {
      await Promise.all([...pools.values()].map((pool) => pool.close()));
    },
  };
}
