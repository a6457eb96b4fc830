import { duration } from "@coppice/core";
import { isAddressRange } from "@coppice/core/backend";
import { z } from "zod";

const range = z.string().refine(isAddressRange, "expected an IP address or a range such as 10.0.0.0/8");

const count = () => z.int().positive();

export const eventsConfig = z.strictObject({
  maxEvents: count().default(100_000).describe("Events of each tenant that are kept, the newest."),
  maxAge: duration("7d").describe("How long an event is kept."),
  webhooks: z
    .strictObject({
      maxWebhooks: z
        .int()
        .nonnegative()
        .default(20)
        .describe("Webhooks that a tenant may have, on all servers of a fleet."),
      maxPending: count()
        .default(1000)
        .describe("Deliveries that may wait for one webhook; further events are listed as dropped."),
      maxDeliveries: count()
        .default(1000)
        .describe("Finished deliveries of one webhook that are remembered, the newest."),
      attempts: count().default(12).describe("How often a delivery is tried before it has failed."),
      firstRetry: duration("5s").describe("Wait before the second attempt; each further one doubles it."),
      longestRetry: duration("1h").describe("Longest wait between two attempts."),
      timeout: duration("10s").describe("Time that a receiver has to answer."),
      concurrency: count().default(16).describe("Deliveries under way at the same time."),
      privateTargets: z
        .array(range)
        .default([])
        .describe("Non-public addresses that webhooks may have nevertheless: 127.0.0.1, 10.0.0.0/8."),
    })
    .prefault({})
    .describe("HTTP endpoints that events are delivered to."),
});

export type EventsConfig = z.infer<typeof eventsConfig>;
