import type { IncomingHttpHeaders } from "node:http";

/**
 * False for a browser on a page from elsewhere: its requests reach loopback from the user's own machine,
 * by another origin or by a name of the page's that was made to resolve here.
 */
export function isLocalClient({ host, origin }: IncomingHttpHeaders): boolean {
  return isLoopbackUrl(`http://${host ?? ""}`) && (origin === undefined || isLoopbackUrl(origin));
}

function isLoopbackUrl(text: string): boolean {
  const hostname = URL.canParse(text) ? new URL(text).hostname : "";
  // Names below localhost are this machine too, whatever a name server says.
  return /(^|\.)localhost$/.test(hostname) || hostname === "[::1]" || /^127(\.\d{1,3}){3}$/.test(hostname);
}
