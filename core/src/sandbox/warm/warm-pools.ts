import { Counter, Gauge, type Registry } from "prom-client";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import { WarmPool, type WarmPoolOptions } from "./warm-pool.js";

/** The warm pools of a server, by template, and their metrics. */
export class WarmPools {
  readonly #pools = new Map<string, WarmPool>();
  readonly #takes: Counter<"template" | "outcome">;
  readonly #failures: Counter<"template">;

  /** @param registry receives the metrics `coppice_sandboxes_warm…`. */
  constructor(registry: Registry) {
    const registers = [registry];
    const pools = this.#pools;
    new Gauge({
      name: "coppice_sandboxes_warm",
      help: "Sandboxes of warm pools that wait for a creation; not counted among the running ones",
      labelNames: ["template"],
      registers,
      collect() {
        for (const [template, pool] of pools) this.set({ template }, pool.size);
      },
    });
    this.#takes = new Counter({
      name: "coppice_sandboxes_warm_takes_total",
      help: "Creations that a warm pool could serve, by whether it did (hit, miss, or broken: the one taken did not work)",
      labelNames: ["template", "outcome"],
      registers,
    });
    this.#failures = new Counter({
      name: "coppice_sandboxes_warm_failures_total",
      help: "Sandboxes for warm pools that could not be made ready",
      labelNames: ["template"],
      registers,
    });
  }

  add(template: string, options: Omit<WarmPoolOptions, "onFailure">): void {
    for (const outcome of ["hit", "miss", "broken"]) this.#takes.inc({ template, outcome }, 0);
    this.#failures.inc({ template }, 0);
    const onFailure = (): void => this.#failures.inc({ template });
    this.#pools.set(template, new WarmPool({ ...options, onFailure }));
  }

  start(): void {
    for (const pool of this.#pools.values()) pool.start();
  }

  /** A ready sandbox; undefined when there is none or no pool. Call `handedOut` with its outcome. */
  take(template: string): HeldSandbox | undefined {
    const pool = this.#pools.get(template);
    if (pool === undefined) return undefined;
    const held = pool.take();
    if (held === undefined) {
      this.#takes.inc({ template, outcome: "miss" });
      pool.refill();
    }
    return held;
  }

  handedOut(template: string, outcome: "hit" | "broken"): void {
    this.#takes.inc({ template, outcome });
    // The answer leaves first: making the next sandbox would delay it.
    setImmediate(() => this.#pools.get(template)?.refill());
  }

  async close(): Promise<void> {
    await Promise.all([...this.#pools.values()].map((pool) => pool.close()));
  }
}
