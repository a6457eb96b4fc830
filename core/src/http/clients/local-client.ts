import type { IncomingHttpHeaders } from "node:http";

/** True for a name or an address that means this machine whatever a name server says: `localhost`, `127.0.0.1`, `[::1]`. */
export function isLoopbackName(name: string): boolean {
  return /^(localhost|127(\.\d{1,3}){3}|(\[::1\]|::1))$/i.test(name);
}

/** The same, or a name below `localhost`, which is this machine's too. */
export function isLocalName(name: string): boolean {
  return isLoopbackName(name) || name.endsWith(".localhost");
}

/** The host name of a `Host` header, in lower case and without its port. */
export function hostnameOf(host: string | undefined): string {
  return (host ?? "").replace(/:\d*$/, "").toLowerCase();
}

/** True for a page's request to the host that the page itself came from, and for a request that is no page's. */
export function isSameOrigin({ host, origin }: Pick<IncomingHttpHeaders, "host" | "origin">): boolean {
  return origin === undefined || (URL.canParse(origin) && new URL(origin).host === host?.toLowerCase());
}

/**
 * True for a request from a program of this machine or from a page that it serves. False for a browser on a page from
 * elsewhere, which reaches loopback from its user's machine: by another origin, or by a name that was made to resolve
 * here. A page below `localhost` is a sandbox's own (`<port>-<id>.localhost`): it may talk to where it came from alone.
 */
export function isLocalClient(headers: IncomingHttpHeaders): boolean {
  const { origin } = headers;
  if (!isLocalName(hostnameOf(headers.host))) return false;
  if (origin !== undefined) return isSameOrigin(headers) || isLoopbackName(hostnameOfOrigin(origin));
  // Images and scripts are asked for without an Origin. To open a link is something that the user does.
  return headers["sec-fetch-site"] !== "cross-site" || headers["sec-fetch-mode"] === "navigate";
}

/** The host name of an `Origin` header; empty for one that has none, such as `null`. */
export function hostnameOfOrigin(origin: string): string {
  return URL.canParse(origin) ? new URL(origin).hostname : "";
}
