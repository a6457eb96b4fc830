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
function hasOwnPort(domain: string): boolean {
  return OWN_PORT.test(domain);
}

/** Variables that point an E2B SDK at this server. The access plugin adds the key. */
export function sdkEnvironment(
  listeners: readonly Listener[],
  domain: string | undefined,
): Readonly<Record<string, string>> {
  // A reverse proxy, or the listeners' TLS, serves the domain: the SDKs derive all names from it.
  if (domain !== undefined && !hasOwnPort(domain)) return { E2B_DOMAIN: domain };
  const urlOf = (wanted: string): string | undefined => listeners.find(({ name }) => name === wanted)?.url;
  const [api, volumes] = [urlOf("api"), urlOf("volumes")];
  return {
    ...(api !== undefined && { E2B_API_URL: api, E2B_SANDBOX_URL: api }),
    ...(volumes !== undefined && { E2B_VOLUME_API_URL: volumes }),
  };
}
