import { type EgressPolicy, plain, policyLines, stateOptions } from "./egress-policy.js";

export interface AliasRulesOptions {
  /** Its own, an alias of an interface of the host. */
  readonly address: string;
  /** The interface that leads out of the host. */
  readonly outside: string;
  /** What its connections are known by where its address is translated; of nobody else on this host. */
  readonly tag: string;
  /** Where programs of the host answer on every address, this one included. */
  readonly hostPorts: readonly number[];
  readonly policy: EgressPolicy;
}

/**
 * The rules of pf.conf(5) for a sandbox that shares the stack of the host, each of them the last word. What stays on
 * the host has its address: it reaches itself and name servers there. What leaves is translated before it is filtered:
 * from then on the tag says whose it is.
 * @throws Error for a value with anything in it that is not plain, SandboxError invalid_argument for a destination
 * that is no IP address and no range.
 */
export function aliasRules(options: AliasRulesOptions): string {
  const { hostPorts, policy } = options;
  const [address, outside, tag] = [options.address, options.outside, options.tag].map(plain) as [
    string,
    string,
    string,
  ];
  const { rest, resolvers, tables } = policyLines({ way: "out", link: outside, source: "any", tag }, policy);
  const protocols = "inet proto { tcp, udp }";
  return [
    ...tables,
    `nat on ${outside} inet from ${address} to any tag ${tag} -> (${outside})`,
    ...(hostPorts.length === 0
      ? []
      : [`block return quick ${protocols} from ${address} to ${address} port { ${hostPorts.join(", ")} }`]),
    `pass quick inet from ${address} to ${address} no state`,
    ...(resolvers.length === 0
      ? []
      : [`pass quick ${protocols} from ${address} to <resolvers> port 53${stateOptions(policy, tag)}`]),
    `block return quick inet from ${address} to any`,
    `block drop in quick inet from any to ${address}`,
    ...resolvers,
    ...rest,
    // Of a connection whose state was killed: no rule above takes what does not begin one.
    `block return out quick on ${outside} inet from any to any tagged ${tag}`,
  ]
    .map((line) => `${line}\n`)
    .join("");
}
