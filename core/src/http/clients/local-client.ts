import type { IncomingHttpHeaders } from "node:http";
import { isIP } from "node:net";
import { SandboxError } from "../../kernel/errors.js";

/** True for a name or an address that means this machine without a name server: `localhost`, `127.0.0.1`, `[::1]`. */
export function isLoopbackName(name: string): boolean {
  return /^(localhost|127(\.\d{1,3}){3}|(\[::1\]|::1))$/i.test(name);
}

/** Likewise, also for a name below `localhost`. */
function isLocalName(name: string): boolean {
  return isLoopbackName(name) || name.endsWith(".localhost");
}

/** The host name of a `Host` header, in lower case and without its port. */
function hostnameOf(host: string | undefined): string {
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
function hostnameOfOrigin(origin: string): string {
  return URL.canParse(origin) ? new URL(origin).hostname : "";
}

interface ForeignPagesOptions {
  /** Domain of the sandboxes; it and every name below it belong to this server. */
  readonly domain: string;
  /** Further host names that clients and proxies use for this server. */
  readonly allowedHosts: readonly string[];
  /** Origins of web pages that may call this server on loopback. */
  readonly allowedOrigins: readonly string[];
}

/** @throws SandboxError permission_denied for a request that a foreign page may have made. */
export type ForeignPages = (headers: IncomingHttpHeaders) => void;

/**
 * Keeps foreign web pages out of a loopback listener. A browser on this machine may connect to it for any page that it
 * shows: to 127.0.0.1, which `Origin` reveals, or to a name of the page's own site that resolves to 127.0.0.1 (DNS
 * rebinding), which `Host` reveals.
 */
export function foreignPages({ domain, allowedHosts, allowedOrigins }: ForeignPagesOptions): ForeignPages {
  const hosts = new Set(allowedHosts.map((host) => host.toLowerCase()));
  const isOwn = (name: string): boolean => hosts.has(name) || name === domain || name.endsWith(`.${domain}`);
  const isLocalPage = (headers: IncomingHttpHeaders): boolean => {
    const { origin } = headers;
    if (origin === undefined || isSameOrigin(headers) || allowedOrigins.includes(origin)) return true;
    const page = hostnameOfOrigin(origin);
    return isLoopbackName(page) || isOfSameSandbox(page, hostnameOf(headers.host));
  };
  return (headers) => {
    const name = hostnameOf(headers.host);
    const isLocal = name === "" || isIP(name.replace(/^\[|\]$/g, "")) !== 0 || isLocalName(name);
    if (!isLocal && !isOwn(name)) {
      throw new SandboxError(
        "host_not_allowed",
        `the host '${name}' is not known here: add it to http.allowedHosts in the server's configuration`,
      );
    }
    // A request by a public name came through a proxy, or was not meant for this machine:
    // the credentials of the page decide there.
    if (!isLocal || isLocalPage(headers)) return;
    throw new SandboxError(
      "origin_not_allowed",
      `the origin '${headers.origin}' is not allowed: add it to http.allowedOrigins in the server's configuration`,
    );
  };
}

/** Ports of one sandbox belong to one application: `<port>-<id>.<domain>`. */
function isOfSameSandbox(page: string, host: string): boolean {
  const [, sandbox] = /^\d+-(.+)$/.exec(host) ?? [];
  return sandbox !== undefined && /^\d+-(.+)$/.exec(page)?.[1] === sandbox;
}
