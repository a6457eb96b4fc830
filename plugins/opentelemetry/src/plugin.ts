import { definePlugin } from "@coppice/core";
import { loadSdk } from "./load-sdk.js";
import { opentelemetryConfig } from "./opentelemetry-config.js";
import { REASONS } from "./reasons.js";
import { SpanRecorder } from "./span-recorder.js";

/** Sends spans of requests and of the parts of creations to a collector, by the SDK of OpenTelemetry. */
export const plugin = definePlugin({
  name: "opentelemetry",
  reasons: REASONS,
  config: opentelemetryConfig,
  setup(context) {
    const { endpoint, headers, maxQueue, sampled, serviceName } = context.config;
    const sdk = loadSdk(context.config);
    const { BatchSpanProcessor, ParentBasedSampler, TraceIdRatioBasedSampler, TracerProvider } = sdk.trace;
    const share = new TraceIdRatioBasedSampler(sampled);
    const provider = new TracerProvider({
      resource: sdk.resources.resourceFromAttributes({ "service.name": serviceName }),
      // A client's word that its trace is to be sent is no reason to send more than the operator wants.
      sampler: new ParentBasedSampler({ root: share, remoteParentSampled: share }),
      spanProcessors: [
        new BatchSpanProcessor({
          exporter: new sdk.exporter.OTLPTraceExporter({ url: endpoint, headers }),
          maxQueueSize: maxQueue,
          maxExportBatchSize: Math.min(maxQueue, 512),
        }),
      ],
    });
    const recorder = new SpanRecorder({
      api: sdk.api,
      tracer: provider.getTracer("coppice"),
      propagator: new sdk.core.W3CTraceContextPropagator(),
    });
    context.onStart(() => recorder.start());
    context.onStop(async () => {
      recorder.stop();
      await provider.shutdown();
    });
  },
});
