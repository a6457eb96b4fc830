import { type EgressPolicy, plain, policyLines } from "./egress-policy.js";

export interface BridgeRulesOptions {
  /** The end of its epair that the host has. */
  readonly link: string;
  readonly bridge: string;
  /** Its own. */
  readonly address: string;
  readonly policy: EgressPolicy;
}

/**
 * The rules of pf.conf(5) for a sandbox on a bridge, each of them the last word. On its epair only what comes from its
 * own address passes, whatever root of the jail configures; on the bridge, which sees both directions, the address is
 * looked up: name servers, the host, and what the policy says.
 * @throws Error for a value with anything in it that is not plain, SandboxError invalid_argument for a destination
 * that is no IP address and no range.
 */
export function bridgeRules(options: BridgeRulesOptions): string {
  const [link, bridge, address] = [options.link, options.bridge, options.address].map(plain) as [
    string,
    string,
    string,
  ];
  const lines = policyLines({ way: "in", link: bridge, source: address }, options.policy);
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
