import { Counter, Gauge, Histogram, type Registry } from "prom-client";

export type TemplatesMetrics = ReturnType<typeof templatesMetrics>;

/** @param running called at each scrape: number of builds that run or wait for their turn. */
export function templatesMetrics(registry: Registry, running: () => number) {
  const registers = [registry];
  const builds = new Counter({
    name: "coppice_templates_builds_total",
    help: "Builds of templates that were started, by how they ended.",
    labelNames: ["status"],
    registers,
  });
  for (const status of ["ready", "error"]) builds.inc({ status }, 0);
  const seconds = new Histogram({
    name: "coppice_templates_build_seconds",
    help: "Time from the start of a build to its end.",
    buckets: [1, 2.5, 5, 10, 30, 60, 150, 300, 600, 1800, 3600],
    registers,
  });
  new Gauge({
    name: "coppice_templates_builds_active",
    help: "Builds that run now, or wait for their turn.",
    registers,
    collect() {
      this.set(running());
    },
  });
  return {
    /** @param tookMs undefined for one that was cancelled. */
    ended(status: "ready" | "error", tookMs?: number) {
      builds.inc({ status });
      if (tookMs !== undefined) seconds.observe(tookMs / 1000);
    },
  };
}
