import { Counter, Gauge, type Registry } from "prom-client";
import type { HeldSandbox } from "../backends/held-sandbox.js";
import { WarmPool, type WarmPoolOptions } from "./warm-pool.js";

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
