import { isIP, BlockList } from "node:net";
import { SandboxError } from "../../kernel/errors.js";
import type { Sandbox } from "./backend.js";

/**
 * IPv4 ranges outside of the public internet: this host, its networks, providers' shared and test ranges, multicast and
 * reserved ones. Source: IANA's registry of special-purpose addresses, without its documentation ranges, where nothing
 * answers.
 */
export const NOT_PUBLIC_IPV4: readonly string[] = [
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  // Service address of Azure's hosts for their guests: a public address that is not routed.
  "168.63.129.16/32",
  "169.254.0.0/16",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "224.0.0.0/4",
  "240.0.0.0/4",
];

/** All outside destinations, IPv6 included. */
export const ALL_TRAFFIC = "0.0.0.0/0";

/**
 * Rules for outgoing connections of a sandbox. A destination is an IP address or a range in CIDR notation, in
 * `allowOut` also a domain name, with `*.` for all names below. `allowOut` wins over `denyOut`; other destinations are
 * reachable. No rule opens addresses that the backend blocks for every sandbox, such as its host.
 */
export interface EgressRules {
  readonly allowOut: readonly string[];
  readonly denyOut: readonly string[];
}

/** Network access of a sandbox, as its creator asked for it. */
export interface NetworkPolicy {
  /** False: as if `denyOut` contained ALL_TRAFFIC. */
  readonly allowInternetAccess: boolean;
  readonly egress?: EgressRules | undefined;
}

const NO_RULES: EgressRules = { allowOut: [], denyOut: [] };
const MAX_DOMAIN = 253;
// The last label of a name is never a number: that would be a misspelt address.
const DOMAIN =
  /^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*(?!\d+$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i;

/** A policy as rules alone, as backends take them. */
export function egressRulesOf({ allowInternetAccess, egress = NO_RULES }: NetworkPolicy): EgressRules {
  const { allowOut, denyOut } = egress;
  return allowInternetAccess ? egress : { allowOut, denyOut: [ALL_TRAFFIC, ...denyOut] };
}

/** True for an address or a range, false for a domain name. */
export function isAddressRange(destination: string): boolean {
  const [, address = "", length] = /^([\d.]+|[\da-f:.]+)(?:\/(\d{1,3}))?$/i.exec(destination) ?? [];
  const version = isIP(address);
  return version !== 0 && Number(length ?? 0) <= (version === 4 ? 32 : 128);
}

/** @throws SandboxError invalid_argument naming the invalid destination of a policy. */
export function checkNetworkPolicy(policy: NetworkPolicy): void {
  const { allowOut, denyOut } = egressRulesOf(policy);
  for (const destination of denyOut) {
    if (isAddressRange(destination)) continue;
    refuse(`network.denyOut: '${destination}' is no IP address and no CIDR range`);
  }
  for (const destination of allowOut) {
    if (isAddressRange(destination)) continue;
    if (destination.length > MAX_DOMAIN || !DOMAIN.test(destination)) {
      refuse(`network.allowOut: '${destination}' is no IP address, no CIDR range and no domain name`);
    }
    // Names are enforced by their addresses: without it everything else at those addresses would stay open.
    if (!denyOut.includes(ALL_TRAFFIC)) {
      refuse(`network.allowOut: the domain '${destination}' needs '${ALL_TRAFFIC}' (ALL_TRAFFIC) in denyOut`);
    }
  }
}

function refuse(message: string): never {
  throw new SandboxError("network_rules_invalid", message);
}

/** A list of addresses and CIDR ranges, IPv4 and IPv6. */
export function addressList(ranges: Iterable<string>): BlockList {
  const list = new BlockList();
  for (const range of ranges) {
    const [address = "", prefix] = range.split("/");
    const family = isIP(address) === 6 ? "ipv6" : "ipv4";
    list.addSubnet(address, Number(prefix ?? (family === "ipv6" ? 128 : 32)), family);
  }
  return list;
}

/** The networking facet of a sandbox. @throws SandboxError invalid_argument when its backend has none. */
export function requireNetworking(
  { networking }: Sandbox,
  backend: string,
): NonNullable<Sandbox["networking"]> {
  if (networking !== undefined) return networking;
  const text = `network rules are not supported: backend '${backend}' cannot restrict what its sandboxes reach`;
  throw new SandboxError("network_rules_unsupported", text);
}
