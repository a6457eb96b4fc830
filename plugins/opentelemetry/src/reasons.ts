import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  failed_precondition: {
    opentelemetry_missing:
      "The packages of OpenTelemetry are not installed. | Install those that the message names.",
  },
});
