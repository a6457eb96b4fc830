import type { IncomingHttpHeaders } from "node:http";

/** Clients whose sandboxes require their token when `POST /sandboxes` does not contain `secure`. */
export const SECURE_BY_DEFAULT = ["always", "except-sdks", "never"] as const;

/**
 * The default of `secure` for a request. E2B's SDKs name themselves in a header, and those that may leave `secure` out
 * are older than tokens: they could not use a sandbox that requires one.
 */
export function isSecureUnlessSaid(
  headers: IncomingHttpHeaders,
  secureByDefault: (typeof SECURE_BY_DEFAULT)[number],
): boolean {
  return secureByDefault === "except-sdks" ? headers["publisher"] !== "e2b" : secureByDefault === "always";
}
