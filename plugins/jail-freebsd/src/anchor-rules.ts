import { BlockList, isIPv4 } from "node:net";
import { SandboxError } from "@coppice/core";
import { ALL_TRAFFIC, type EgressRules, isAddressRange } from "@coppice/core/backend";

/** What the rules of one sandbox are made of. */
export interface AnchorOptions {
  /** The end of its epair that the host has. */
  readonly link: string;
  readonly bridge: string;
  /** Its own. */
  readonly address: string;
  readonly blocked: readonly string[];
  readonly resolvers: readonly string[];
  /** States that one rule keeps at most. */
  readonly connections: number;
  readonly rules: EgressRules;
}

/** A destination that pf remembers a connection to. */
export interface Destination {
  readonly address: string;
  readonly port: number | undefined;
}

/** Where name servers answer. */
const DNS_PORT = 53;

/**
 * The rules of pf.conf(5) for one sandbox, each of them the last word. On its epair only what comes from its own
 * address passes, whatever root of the jail configures; on the bridge, which sees both directions, the address is
 * looked up: name servers, the host, what is blocked for all, what is allowed, what is denied.
 * @throws Error for a value with anything in it that is not plain, SandboxError invalid_argument for a destination
 * that is no IP address and no range.
 */
export function anchorRules(options: AnchorOptions): string {
  const { connections, rules } = options;
  const [link, bridge, address] = [options.link, options.bridge, options.address].map(plain);
  checkEgressRules(rules);
  const from = `quick on ${bridge} inet from ${address}`;
  const state = `keep state (if-bound, max ${connections})`;
  const tables = {
    resolvers: options.resolvers,
    blocked: options.blocked,
    allowed: versionFour(rules.allowOut),
    denied: versionFour(rules.denyOut),
  };
  const to = (name: keyof typeof tables, verb: string, rest: string): string[] => {
    if (tables[name].length === 0) return [];
    // A table does not hold what everything lies in.
    const where = tables[name].includes(ALL_TRAFFIC) ? "any" : `<${name}>`;
    return [`${verb} in ${from} to ${where}${rest}`];
  };
  const dns = `quick on ${bridge} inet proto { tcp, udp } from ${address} to <resolvers> port ${DNS_PORT}`;
  const lines = [
    ...Object.entries(tables)
      .filter(([, destinations]) => destinations.length > 0 && !destinations.includes(ALL_TRAFFIC))
      .map(([name, destinations]) => `table <${name}> const { ${destinations.map(plain).join(", ")} }`),
    `block drop in quick on ${link} inet6 all`,
    `block drop in quick on ${link} inet from ! ${address} to any`,
    `pass in quick on ${link} inet all no state`,
    ...(tables.resolvers.length === 0 ? [] : [`pass in ${dns} ${state}`]),
    `block return in ${from} to (self)`,
    ...to("blocked", "block return", ""),
    ...to("allowed", "pass", ` ${state}`),
    ...to("denied", "block return", ""),
    `pass in ${from} to any ${state}`,
    `block drop out quick on ${bridge} inet from any to ${address}`,
  ];
  return lines.map((line) => `${line}\n`).join("");
}

/** Tells of destinations whether those rules leave them open, in the order that pf goes by. */
export function destinationTest(options: AnchorOptions): (destination: Destination) => boolean {
  const { rules } = options;
  const [blocked, allowed, denied] = [options.blocked, rules.allowOut, rules.denyOut].map(blockList);
  return ({ address, port }) => {
    if (port === DNS_PORT && options.resolvers.includes(address)) return true;
    if (blocked?.check(address)) return false;
    return allowed?.check(address) === true || denied?.check(address) !== true;
  };
}

/**
 * Refuses rules that cannot be kept here: names of domains, which are known only to who looks them up.
 * @throws SandboxError invalid_argument
 */
export function checkEgressRules({ allowOut, denyOut }: EgressRules): void {
  const other = [...allowOut, ...denyOut].find((destination) => !isAddressRange(destination));
  if (other === undefined) return;
  const text = `this server does not support domain names (${JSON.stringify(other)}): name addresses or ranges`;
  throw new SandboxError("invalid_argument", `network: ${text}`);
}

/** Those of version 6 are reached by no sandbox. */
function versionFour(destinations: readonly string[]): readonly string[] {
  return destinations.filter((destination) => !destination.includes(":")).map(withoutEmptyMask);
}

/** All that a length of 0 can be written with is everything. */
function withoutEmptyMask(destination: string): string {
  return destination.endsWith("/0") ? ALL_TRAFFIC : destination;
}

function blockList(destinations: readonly string[]): BlockList {
  const list = new BlockList();
  for (const destination of versionFour(destinations)) {
    const [address = "", length = "32"] = destination.split("/");
    if (isIPv4(address)) list.addSubnet(address, Number(length), "ipv4");
  }
  return list;
}

/** Quoting is not relied on: what would need it is refused. */
function plain(text: string): string {
  if (!/^[A-Za-z0-9._/]+$/.test(text))
    throw new Error(`${JSON.stringify(text)} cannot be part of pf's rules`);
  return text;
}
