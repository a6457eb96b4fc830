import { Counter, Gauge, Histogram, Registry } from "prom-client";
import type { BootProblem } from "../kernel/errors.js";
import { CORE } from "../kernel/one-core.js";
import type Router from "@koa/router";
import type { Health } from "./health.js";

/** An answered request. `route` is a pattern, to keep its values few. */
interface Observation {
  readonly surface: string;
  readonly route: string;
  readonly method: string;
  readonly status: number;
  readonly seconds: number;
}

const KNOWN_METHODS = new Set(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]);

/** Notes an answered request in the metrics. */
export type HttpMetrics = (observation: Observation) => void;

export function httpMetrics(registry: Registry): HttpMetrics {
  const registers = [registry];
  const requests = new Counter({
    name: "coppice_http_requests_total",
    help: "Requests answered",
    labelNames: ["surface", "route", "method", "status"],
    registers,
  });
  const durations = new Histogram({
    name: "coppice_http_request_seconds",
    help: "Time from the request's headers to the end of its answer",
    labelNames: ["surface", "route"],
    buckets: [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60],
    registers,
  });
  return ({ surface, route, method, status, seconds }) => {
    requests.inc({ surface, route, method: KNOWN_METHODS.has(method) ? method : "other", status });
    durations.observe({ surface, route }, seconds);
  };
}

/** Says with a constant 1 which release runs, on which Node. */
export function buildInfo(registry: Registry): void {
  const labels = { version: CORE.version, commit: CORE.commit ?? "", node: process.versions.node };
  new Gauge({
    name: "coppice_build_info",
    help: "The release that runs: always 1",
    labelNames: Object.keys(labels),
    registers: [registry],
  }).set(labels, 1);
}

export interface OwnedRegistry {
  readonly plugin: string;
  readonly registry: Registry;
}

/** Metrics outside of their plugin's prefix, and names that two plugins use. */
export function metricProblems(plugins: readonly OwnedRegistry[], core: Registry): readonly BootProblem[] {
  const owners = new Map(core.getMetricsAsArray().map(({ name }) => [name, "core"]));
  return plugins.flatMap(({ plugin, registry }) =>
    registry.getMetricsAsArray().flatMap(({ name }) => {
      const owner = owners.get(name);
      if (owner !== undefined)
        return [{ message: `'${owner}' and plugin '${plugin}' both have a metric ${name}` }];
      owners.set(name, plugin);
      const prefix = `coppice_${plugin.replaceAll("-", "_")}_`;
      return name.startsWith(prefix)
        ? []
        : [{ message: `plugin '${plugin}' has a metric ${name}, which does not start with ${prefix}` }];
    }),
  );
}

/** `/metrics`, `/healthz` and `/readyz`. */
export function mountOps(router: Router, registries: readonly Registry[], health: Health): void {
  router.get("/metrics", async (ctx) => {
    const merged = Registry.merge([...registries]);
    ctx.set("content-type", merged.contentType);
    ctx.body = await merged.metrics();
  });
  router.get("/healthz", (ctx) => {
    ctx.body = { status: "ok" };
  });
  router.get("/readyz", async (ctx) => {
    const readiness = await health.readiness();
    ctx.status = readiness.ready ? 200 : 503;
    ctx.body = readiness;
  });
}
