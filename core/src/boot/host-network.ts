import * as http from "node:http";
import { getCACertificates, setDefaultCACertificates } from "node:tls";
import type { Cleanup } from "../kernel/cleanup.js";
import { messageOf } from "../kernel/errors.js";
import type { Logger } from "../observe/logger.js";
import type { NamedFinding } from "../observe/finding.js";
import { hostAuthorities } from "./host-authorities.js";
import { hostProxies, withoutAccount } from "./host-proxies.js";
import type { ServerConfig } from "./server-schema.js";

type Outgoing = ServerConfig["outgoing"];

/** Hosts that no proxy can reach for this server. */
const OWN_HOSTS = "localhost,127.0.0.1,::1";

/**
 * Lets the connections of this process trust the authorities of the host, and `fetch` use the proxies of the environment,
 * until `cleanup` runs. Both hold for the whole process: Node has no smaller place for them.
 */
export async function useHostNetwork(
  { authorities, proxy }: Outgoing,
  { cleanup, log }: { readonly cleanup: Cleanup; readonly log: Logger },
): Promise<void> {
  const own = authorities === "host" ? await hostAuthorities() : [];
  if (own.length > 0) {
    const before = getCACertificates("default");
    setDefaultCACertificates([...before, ...own.map(({ pem }) => pem)]);
    cleanup.push("core", () => setDefaultCACertificates(before));
  }
  const { no_proxy: exceptions, ...proxies } = proxy === "environment" ? hostProxies() : {};
  if (Object.keys(proxies).length === 0) return;
  try {
    const no_proxy = exceptions === undefined ? OWN_HOSTS : `${exceptions},${OWN_HOSTS}`;
    // Nodes before 24.14 have none.
    const restore = http.setGlobalProxyFromEnv?.({ ...proxies, no_proxy });
    if (restore !== undefined) cleanup.push("core", restore);
  } catch (error) {
    log.warn({ reason: messageOf(error) }, "the proxy of the environment cannot be used");
  }
}

/** What of the host's network the server uses, for `coppice doctor`. */
export async function examineNetwork({ authorities, proxy }: Outgoing): Promise<readonly NamedFinding[]> {
  return [
    { name: "authorities", severity: "ok", message: await authoritiesText(authorities) },
    { name: "proxies", severity: "ok", message: proxiesText(proxy) },
  ];
}

async function authoritiesText(authorities: Outgoing["authorities"]): Promise<string> {
  if (authorities === "node") return "those of Node alone are trusted (outgoing.authorities)";
  const own = await hostAuthorities();
  if (own.length === 0) return "this host has none of its own beside the public ones";
  const names = own.map(({ subject, path }) => `'${subject}' of ${path}`);
  return `this host's own are trusted beside the public ones: ${names.join(", ")}`;
}

function proxiesText(proxy: Outgoing["proxy"]): string {
  if (proxy === "none") return "none is used (outgoing.proxy)";
  const { no_proxy: exceptions, http_proxy: plain, https_proxy: secure } = hostProxies();
  const named = [
    ...(plain === undefined ? [] : [`${withoutAccount(plain)} for HTTP`]),
    ...(secure === undefined ? [] : [`${withoutAccount(secure)} for HTTPS`]),
  ];
  if (named.length === 0) return "the environment names none";
  return `${named.join(", ")}${exceptions === undefined ? "" : `, not for ${exceptions}`}`;
}
