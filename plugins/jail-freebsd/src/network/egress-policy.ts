import { type BlockList, isIPv4 } from "node:net";
import { SandboxError } from "@coppice/core";
import { ALL_TRAFFIC, addressList, type EgressRules, isAddressRange } from "@coppice/core/backend";

/** Rules for the connections of one sandbox. */
export interface EgressPolicy {
  readonly blocked: readonly string[];
  readonly resolvers: readonly string[];
  /** States that one rule keeps at most. */
  readonly connections: number;
  readonly rules: EgressRules;
}

/** By what packets of one sandbox are known where a policy is applied. */
export interface EgressTraffic {
  readonly way: "in" | "out";
  readonly link: string;
  /** An address, or `any`. */
  readonly source: string;
  /** What a rule that translates addresses has put on it, and the label of the states. */
  readonly tag?: string;
}

/** A destination that pf remembers a connection to. */
export interface Destination {
  readonly address: string;
  readonly port: number | undefined;
}

/** Where name servers answer. */
const DNS_PORT = 53;

/**
 * A policy as lines of pf.conf(5), each of them the last word: its tables, the name servers that are always open, and
 * the rest, in the order that decides: what is blocked for all, what is allowed, what is denied, what is left.
 * @throws Error for a value with anything in it that is not plain, SandboxError invalid_argument for a destination
 * that is no IP address and no range.
 */
export function policyLines({ way, link, source, tag }: EgressTraffic, policy: EgressPolicy) {
  const { rules, resolvers } = policy;
  checkEgressRules(rules);
  const tables = {
    resolvers,
    blocked: policy.blocked,
    allowed: versionFour(rules.allowOut),
    denied: versionFour(rules.denyOut),
  };
  const mark = tag === undefined ? "" : ` tagged ${plain(tag)}`;
  const start = `${way} quick on ${plain(link)} inet`;
  const state = stateOptions(policy, tag);
  const to = (name: keyof typeof tables, verb: string, rest = ""): string[] => {
    if (tables[name].length === 0) return [];
    // A table does not hold what everything lies in.
    const where = tables[name].includes(ALL_TRAFFIC) ? "any" : `<${name}>`;
    return [`${verb} ${start} from ${plain(source)} to ${where}${mark}${rest}`];
  };
  const dns = `${start} proto { tcp, udp } from ${plain(source)} to <resolvers> port ${DNS_PORT}`;
  return {
    tables: Object.entries(tables)
      .filter(([, destinations]) => destinations.length > 0 && !destinations.includes(ALL_TRAFFIC))
      .map(([name, destinations]) => `table <${name}> const { ${destinations.map(plain).join(", ")} }`),
    resolvers: resolvers.length === 0 ? [] : [`pass ${dns}${mark}${state}`],
    rest: [
      ...to("blocked", "block return"),
      ...to("allowed", "pass", state),
      ...to("denied", "block return"),
      `pass ${start} from ${plain(source)} to any${mark}${state}`,
    ],
  };
}

/** How a rule that passes connections keeps their states. */
export function stateOptions({ connections }: Pick<EgressPolicy, "connections">, label?: string): string {
  const options = ` keep state (if-bound, max ${connections})`;
  return label === undefined ? options : `${options} label "${plain(label)}"`;
}

/** Tells of destinations whether a policy leaves them open, in the order that pf goes by. */
export function destinationTest(policy: EgressPolicy): (destination: Destination) => boolean {
  const { resolvers, rules } = policy;
  const [blocked, allowed, denied] = [policy.blocked, rules.allowOut, rules.denyOut].map(blockList);
  return ({ address, port }) => {
    if (port === DNS_PORT && resolvers.includes(address)) return true;
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

/** Quoting is not relied on: what would need it is refused. @throws Error */
export function plain(text: string): string {
  if (!/^[A-Za-z0-9._/-]+$/.test(text))
    throw new Error(`${JSON.stringify(text)} cannot be part of pf's rules`);
  return text;
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
  return addressList(
    versionFour(destinations).filter((destination) => isIPv4(destination.replace(/\/.*/, ""))),
  );
}
