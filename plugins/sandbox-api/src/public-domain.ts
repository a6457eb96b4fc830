import type { Listener } from "@coppice/core";

const OWN_PORT = /:0$/;

/** The domain that clients are told to reach sandboxes at: port 0 is that of the listener `api`. */
export function publicDomain(
  configured: string | undefined,
  listeners: readonly Pick<Listener, "name" | "port">[],
): string | undefined {
  const port = listeners.find(({ name }) => name === "api")?.port;
  return port === undefined ? configured : configured?.replace(OWN_PORT, `:${port}`);
}

/** True for a domain that only clients on this machine use, which find the server by its URL. */
export function hasOwnPort(domain: string): boolean {
  return OWN_PORT.test(domain);
}
