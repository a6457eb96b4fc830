import { type EgressPolicy, plain, policyLines } from "./egress-policy.js";

export interface BridgeRulesOptions {
  /** Host's end of the epair. */
  readonly link: string;
  readonly bridge: string;
  /** Address of the sandbox. */
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
