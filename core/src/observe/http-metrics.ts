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

export class HttpMetrics {
  readonly #requests: Counter<"surface" | "route" | "method" | "status">;
  readonly #seconds: Histogram<"surface" | "route">;

  constructor(registry: Registry) {
    this.#requests = new Counter({
      name: "coppice_http_requests_total",
      help: "Requests answered",
      labelNames: ["surface", "route", "method", "status"],
      registers: [registry],
    });
    this.#seconds = new Histogram({
      name: "coppice_http_request_seconds",
      help: "Time from the request's headers to the end of its answer",
      labelNames: ["surface", "route"],
      buckets: [0.001, 0.005, 0.02, 0.1, 0.5, 2, 10, 60],
      registers: [registry],
    });
  }

  observe({ surface, route, method, status, seconds }: Observation): void {
    this.#requests.inc({ surface, route, method: KNOWN_METHODS.has(method) ? method : "other", status });
    this.#seconds.observe({ surface, route }, seconds);
  }
}
