import { z } from "zod";

export const opentelemetryConfig = z.strictObject({
  endpoint: z
    .url({ protocol: /^https?$/ })
    .default("http://127.0.0.1:4318/v1/traces")
    .describe("Where spans are sent: a collector that takes OTLP over HTTP."),
  headers: z
    .record(z.string(), z.string())
    .default({})
    .describe("Headers of each of these requests, such as an `authorization`."),
  serviceName: z.string().min(1).default("coppice").describe("The `service.name` of all spans."),
  sampled: z
    .number()
    .min(0)
    .max(1)
    .default(1)
    .describe(
      "Share of traces that are sent; the same traces on all servers, also of those that a client began.",
    ),
  maxQueue: z
    .int()
    .min(1)
    .default(2048)
    .describe("Spans that wait to be sent; further ones are dropped while the collector does not answer."),
  modules: z
    .string()
    .startsWith("/")
    .optional()
    .describe(
      "Folder in which the packages of OpenTelemetry are installed; that of the server when absent. See docs/reference.md.",
    ),
});

export type OpentelemetryConfig = z.infer<typeof opentelemetryConfig>;
