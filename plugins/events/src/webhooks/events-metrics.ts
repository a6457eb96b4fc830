import { Counter, Gauge, Histogram, type Registry } from "prom-client";

type AttemptOutcome = "delivered" | "retried" | "failed";

export type EventsMetrics = ReturnType<typeof eventsMetrics>;

/** @param waiting called at each scrape: number of pending deliveries. */
export function eventsMetrics(registry: Registry, waiting: () => number) {
  const registers = [registry];
  const recorded = new Counter({
    name: "coppice_events_recorded_total",
    help: "Events of sandboxes, by type.",
    labelNames: ["type"],
    registers,
  });
  const attempts = new Counter({
    name: "coppice_events_attempts_total",
    help: "Attempts to deliver an event to a webhook, by how they ended.",
    labelNames: ["outcome"],
    registers,
  });
  const dropped = new Counter({
    name: "coppice_events_dropped_total",
    help: "Deliveries that were not made because too many waited for their webhook.",
    registers,
  });
  const seconds = new Histogram({
    name: "coppice_events_attempt_seconds",
    help: "Time that an attempt to deliver an event took.",
    buckets: [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
    registers,
  });
  new Gauge({
    name: "coppice_events_waiting",
    help: "Deliveries that wait now.",
    registers,
    collect() {
      this.set(waiting());
    },
  });
  return {
    recorded: (type: string) => recorded.inc({ type }),
    dropped: (count: number) => dropped.inc(count),
    attempted(outcome: AttemptOutcome, tookMs: number) {
      attempts.inc({ outcome });
      seconds.observe(tookMs / 1000);
    },
  };
}
