import { lookup } from "node:dns/promises";
import { BlockList, isIPv4 } from "node:net";
import { hostProxies } from "@coppice/core";
import type { Service } from "@coppice/core/backend";
import type { BuildRequest } from "../model/build-request.js";
import { SERVER } from "../model/template-record.js";
import type { TemplatesConfig } from "../templates-config.js";

/** The proxies that commands of a build have. */
export interface StepProxies {
  readonly variables: Readonly<Record<string, string>>;
  /** Where they are. Their network may be closed to sandboxes. */
  readonly services: readonly Service[];
  /** Variables that name a proxy on this host alone, and are left out. */
  readonly unreachable: readonly string[];
}

const NONE: StepProxies = { variables: {}, services: [], unreachable: [] };
const LOOPBACK = new BlockList();
LOOPBACK.addSubnet("127.0.0.0", 8, "ipv4");

/**
 * The proxies of the server's environment, in lower and upper case, where the commands of a build get them. An address
 * may have an account, and a proxy leads to other networks, so clients' builds have none unless the settings say so.
 */
export async function stepProxies(
  setting: TemplatesConfig["builds"]["proxy"],
  { tenant }: Pick<BuildRequest, "tenant">,
  found: ReturnType<typeof hostProxies> = hostProxies(),
): Promise<StepProxies> {
  if (setting === "none" || (setting === "recipes" && tenant !== SERVER)) return NONE;
  const { no_proxy: exceptions, ...proxies } = found;
  const variables: Record<string, string> = {};
  const services: Service[] = [];
  const unreachable: string[] = [];
  const set = (name: string, value: string): void => {
    variables[name] = value;
    variables[name.toUpperCase()] = value;
  };
  for (const [name, value] of Object.entries(proxies)) {
    const { address, service } = await placeOf(value);
    if (service !== undefined && LOOPBACK.check(service.address, "ipv4")) {
      unreachable.push(name);
      continue;
    }
    set(name, address);
    if (service !== undefined) services.push(service);
  }
  if (Object.keys(variables).length > 0 && exceptions !== undefined) set("no_proxy", exceptions);
  return { variables, services, unreachable };
}

/** A proxy as a sandbox finds it: its name may be known to this host alone. */
async function placeOf(value: string): Promise<{ readonly address: string; readonly service?: Service }> {
  const text = value.includes("://") ? value : `http://${value}`;
  if (!URL.canParse(text)) return { address: value };
  const url = new URL(text);
  const isSecure = url.protocol === "https:";
  const port = Number(url.port || (isSecure ? 443 : 80));
  const found = await lookup(url.hostname, { family: 4 }).catch(() => undefined);
  if (found === undefined || !isIPv4(found.address)) return { address: value };
  const service = { address: found.address, port };
  // The certificate of one that has TLS itself is for its name.
  if (!isSecure) url.hostname = found.address;
  return { address: isSecure ? value : url.href.replace(/\/$/, ""), service };
}
