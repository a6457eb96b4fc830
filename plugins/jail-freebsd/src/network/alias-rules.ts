import { type EgressPolicy, plain, policyLines, stateOptions } from "./egress-policy.js";

export interface AliasRulesOptions {
  /** Address of the sandbox, an alias of an interface of the host. */
  readonly address: string;
  /** Outgoing interface of the host. */
  readonly outside: string;
  /** Tag of the sandbox's connections after translation, unique on this host. */
  readonly tag: string;
  /** Ports on which programs of the host listen on every address, this one included. */
  readonly hostPorts: readonly number[];
  readonly policy: EgressPolicy;
}

/**
 * Rules of pf.conf(5) for a sandbox that shares the host's stack; all are `quick`. Inside the host its packets have its
 * address: it reaches itself and name servers. Outgoing packets are translated before they are filtered, so only their
 * tag identifies the sandbox.
 * @throws Error for a value with characters that are not plain, SandboxError invalid_argument for a destination that is
 * no IP address and no range.
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
    // For connections whose state was killed: the rules above match only packets that begin a connection.
    `block return out quick on ${outside} inet from any to any tagged ${tag}`,
  ]
    .map((line) => `${line}\n`)
    .join("");
}
