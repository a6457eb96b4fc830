import { Counter, Histogram, type Registry } from "prom-client";

/** An answered request. `route` is a pattern, to keep its values few. */
export interface Observation {
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
