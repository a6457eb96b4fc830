import type { IncomingHttpHeaders } from "node:http";

/** Settings for the clients whose sandboxes require their token when `POST /sandboxes` does not say `secure`. */
export const SECURE_BY_DEFAULT = ["always", "except-sdks", "never"] as const;

/**
 * What a request means that says nothing. E2B's SDKs name themselves in a header, and those that may leave `secure`
 * out are older than tokens: they send none, so a sandbox that asks for one is of no use to them.
 */
export function isSecureUnlessSaid(
  headers: IncomingHttpHeaders,
  secureByDefault: (typeof SECURE_BY_DEFAULT)[number],
): boolean {
  return secureByDefault === "except-sdks" ? headers["publisher"] !== "e2b" : secureByDefault === "always";
}
