import type { Listener } from "@coppice/core";
import { hasOwnPort } from "./public-domain.js";

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
