import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  invalid_argument: {
    webhook_url_invalid: "The host of a webhook is no public address. | See `events.webhooks`.",
  },
  not_found: {
    webhook_not_found: "The tenant has no such webhook. | List the webhooks.",
    delivery_not_found: "The webhook has no such delivery that is done. | List the deliveries.",
  },
  resource_exhausted: {
    webhook_limit_reached: "As many webhooks as a tenant may have. | See `events.webhooks`.",
  },
});
