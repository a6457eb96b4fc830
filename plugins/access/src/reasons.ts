import { declareReasons } from "@coppice/core";

/** Reasons of the refusals of this plugin. A released name keeps its meaning and its code. */
export const REASONS = declareReasons({
  not_found: { key_not_found: "No API key with this id is in use. | `coppice keys list`." },
  already_exists: { key_exists: "An API key has this name. | Choose another name." },
  resource_exhausted: {
    rate_limited: "Too many requests. | Wait for `Retry-After`; see `access.rateLimits`.",
    quota_reached: "A quota of the tenant is used up. | End sandboxes; see `access.quotas`.",
  },
  failed_precondition: {
    template_without_limit: "A quota counts what the template does not limit. | Give it a limit.",
  },
  unavailable: { identity_provider_unavailable: "Keys for tokens cannot be fetched. | See `access.jwt`." },
  unauthenticated: {
    credential_invalid: "The API key or token is wrong, expired or revoked. | Make a new one.",
  },
});
