import type { Listener } from "@coppice/core";

const OWN_PORT = /:0$/;

/** The domain of sandboxes for clients; port 0 stands for that of the listener `api`. */
export function publicDomain(
  configured: string | undefined,
  listeners: readonly Pick<Listener, "name" | "port">[],
): string | undefined {
  const port = listeners.find(({ name }) => name === "api")?.port;
  return port === undefined ? configured : configured?.replace(OWN_PORT, `:${port}`);
}

/** True for a domain of this machine alone, whose clients find the server by its URL. */
export function hasOwnPort(domain: string): boolean {
  return OWN_PORT.test(domain);
}
