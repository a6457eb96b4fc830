import type { IncomingHttpHeaders } from "node:http";

/** True for a name or an address that means this machine without a name server: `localhost`, `127.0.0.1`, `[::1]`. */
export function isLoopbackName(name: string): boolean {
  return /^(localhost|127(\.\d{1,3}){3}|(\[::1\]|::1))$/i.test(name);
}

/** Likewise, also for a name below `localhost`. */
export function isLocalName(name: string): boolean {
  return isLoopbackName(name) || name.endsWith(".localhost");
}

/** The host name of a `Host` header, in lower case and without its port. */
export function hostnameOf(host: string | undefined): string {
  return (host ?? "").replace(/:\d*$/, "").toLowerCase();
}

/** True for a page's request to its own host, and for a request that comes from no page. */
export function isSameOrigin({ host, origin }: Pick<IncomingHttpHeaders, "host" | "origin">): boolean {
  return origin === undefined || (URL.canParse(origin) && new URL(origin).host === host?.toLowerCase());
}

/**
 * True for a request from a program of this machine or from a page that it serves. False for a browser on a foreign
 * page, which reaches loopback by another origin or by a rebound name. A page below `localhost` belongs to a sandbox
 * (`<port>-<id>.localhost`): it may talk to its own host alone.
 */
export function isLocalClient(headers: IncomingHttpHeaders): boolean {
  const { origin } = headers;
  if (!isLocalName(hostnameOf(headers.host))) return false;
  if (origin !== undefined) return isSameOrigin(headers) || isLoopbackName(hostnameOfOrigin(origin));
  // Images and scripts are requested without an Origin. Opening a link is the user's own act.
  return headers["sec-fetch-site"] !== "cross-site" || headers["sec-fetch-mode"] === "navigate";
}

/** The host name of an `Origin` header; empty when it has none, as in `null`. */
export function hostnameOfOrigin(origin: string): string {
  return URL.canParse(origin) ? new URL(origin).hostname : "";
}
