import { type BlockList, isIPv4 } from "node:net";
import { SandboxError } from "@coppice/core";
import { ALL_TRAFFIC, addressList, type EgressRules, isAddressRange } from "@coppice/core/backend";

interface EgressPolicy {
  readonly blocked: readonly string[];
  readonly resolvers: readonly string[];
  readonly connections: number;
  readonly rules: EgressRules;
}

/** Matches the packets of one sandbox in a rule. */
interface EgressTraffic {
  readonly link: string;
  readonly source: string;
}

interface Destination {
  readonly address: string;
  readonly port: number | undefined;
}

const DNS_PORT = 53;
/** An incoming state as pfctl(8) prints it: `em0 tcp 192.0.2.1:80 <- 10.0.0.2:4096  …`. */
const INCOMING = /^\S+ \S+ ([\d.]+)(?::(\d+))?(?: \([^)]*\))? <- ([\d.]+)(?::\d+)?\s/;

interface BridgeRulesOptions {
  readonly link: string;
  readonly bridge: string;
  readonly address: string;
  readonly policy: EgressPolicy;
}

/**
 * Rules of pf.conf(5) for a sandbox on a bridge; all are `quick`. Its epair passes only packets with its own source
 * address, whatever root of the jail configures. The bridge, which sees both directions, checks the destination: name
 * servers, the host, and the policy.
 * @throws Error for a value with characters that are not plain, SandboxError invalid_argument for a destination that is
 * no IP address and no range.
 */
export function bridgeRules(options: BridgeRulesOptions): string {
  const [link, bridge, address] = [options.link, options.bridge, options.address].map(plain) as [
    string,
    string,
    string,
  ];
  const lines = policyLines({ link: bridge, source: address }, options.policy);
  return [
    ...lines.tables,
    `block drop in quick on ${link} inet6 all`,
    `block drop in quick on ${link} inet from ! ${address} to any`,
    `pass in quick on ${link} inet all no state`,
    ...lines.resolvers,
    `block return in quick on ${bridge} inet from ${address} to (self)`,
    ...lines.rest,
    `block drop out quick on ${bridge} inet from any to ${address}`,
  ]
    .map((line) => `${line}\n`)
    .join("");
}

/**
 * Policy as lines of pf.conf(5), all `quick`: tables, name servers that are always open, and the rest in the order that
 * decides: blocked for all, allowed, denied, default.
 * @throws Error for a value with characters that are not plain, SandboxError invalid_argument for a destination that is
 * no IP address and no range.
 */
function policyLines({ link, source }: EgressTraffic, policy: EgressPolicy) {
  const { rules, resolvers } = policy;
  checkEgressRules(rules);
  const tables = {
    resolvers,
    blocked: policy.blocked,
    allowed: versionFour(rules.allowOut),
    denied: versionFour(rules.denyOut),
  };
  const start = `in quick on ${plain(link)} inet`;
  const state = ` keep state (if-bound, max ${policy.connections})`;
  const to = (name: keyof typeof tables, verb: string, rest = ""): string[] => {
    if (tables[name].length === 0) return [];
    // A table cannot hold 0.0.0.0/0.
    const where = tables[name].includes(ALL_TRAFFIC) ? "any" : `<${name}>`;
    return [`${verb} ${start} from ${plain(source)} to ${where}${rest}`];
  };
  const dns = `${start} proto { tcp, udp } from ${plain(source)} to <resolvers> port ${DNS_PORT}`;
  return {
    tables: Object.entries(tables)
      .filter(([, destinations]) => destinations.length > 0 && !destinations.includes(ALL_TRAFFIC))
      .map(([name, destinations]) => `table <${name}> const { ${destinations.map(plain).join(", ")} }`),
    resolvers: resolvers.length === 0 ? [] : [`pass ${dns}${state}`],
    rest: [
      ...to("blocked", "block return"),
      ...to("allowed", "pass", state),
      ...to("denied", "block return"),
      `pass ${start} from ${plain(source)} to any${state}`,
    ],
  };
}

/** Destinations of the connections that an address opened. @param listing output of `pfctl -s states`. */
export function statesOf(listing: string, address: string): readonly Destination[] {
  return listing.split("\n").flatMap((line) => {
    const [, destination, port, source] = INCOMING.exec(line) ?? [];
    if (destination === undefined || source !== address) return [];
    return [{ address: destination, port: port === undefined ? undefined : Number(port) }];
  });
}

/** Returns a test of whether a policy allows a destination. It checks in the order of pf. */
export function destinationTest(policy: EgressPolicy): (destination: Destination) => boolean {
  const { resolvers, rules } = policy;
  const [blocked, allowed, denied] = [policy.blocked, rules.allowOut, rules.denyOut].map(blockList);
  return ({ address, port }) => {
    if (port === DNS_PORT && resolvers.includes(address)) return true;
    if (blocked?.check(address)) return false;
    return allowed?.check(address) === true || denied?.check(address) !== true;
  };
}

/** Refuses domain names, which pf cannot match. @throws SandboxError invalid_argument */
export function checkEgressRules({ allowOut, denyOut }: EgressRules): void {
  const other = [...allowOut, ...denyOut].find((destination) => !isAddressRange(destination));
  if (other === undefined) return;
  const text = `this server does not support domain names (${JSON.stringify(other)}): name addresses or ranges`;
  throw new SandboxError("network_rules_invalid", `network: ${text}`);
}

/** Values are never quoted: one that would need quotes is refused. @throws Error */
function plain(text: string): string {
  if (!/^[A-Za-z0-9._/-]+$/.test(text))
    throw new Error(`${JSON.stringify(text)} cannot be part of pf's rules`);
  return text;
}

/** Drops IPv6, which no sandbox has. */
function versionFour(destinations: readonly string[]): readonly string[] {
  return destinations.filter((destination) => !destination.includes(":")).map(withoutEmptyMask);
}

/** Replaces every spelling of a range with length 0. */
function withoutEmptyMask(destination: string): string {
  return destination.endsWith("/0") ? ALL_TRAFFIC : destination;
}

function blockList(destinations: readonly string[]): BlockList {
  return addressList(
    versionFour(destinations).filter((destination) => isIPv4(destination.replace(/\/.*/, ""))),
  );
}
