import { readFile, writeFile } from "node:fs/promises";
import { networkInterfaces } from "node:os";
import { setInterval } from "node:timers/promises";
import { type Logger, SandboxError } from "@coppice/core";
import { ALL_TRAFFIC, type EgressRules, isAddressRange, type Service } from "@coppice/core/backend";
import type { HostRun, Init, Launcher } from "../launcher/launcher.js";
import type { Uplink } from "./uplink.js";

interface EgressSettings {
  /** Private range for the addresses of sandboxes, an IPv4 /16: `10.213.0.0/16`. */
  readonly range: string;
  readonly blocked: readonly string[];
  readonly connections: number;
}

interface EgressOptions {
  readonly launcher: Launcher;
  readonly settings: EgressSettings;
  /** Digest of the installation, which names its interfaces and its table. */
  readonly digest: string;
  /** Way out for a server that is not root; undefined where the host's network is used. */
  readonly uplink: Uplink | undefined;
  /** Reserves the range among servers of this host; released by `close`. */
  readonly claim?: Disposable | undefined;
  readonly log: Logger;
}

const FORWARDING = "/proc/sys/net/ipv4/ip_forward";
const TABLE_PREFIX = "coppice_";
/**
 * Empty table that marks forwarding as turned on by a Coppice server, of any installation. Like the forwarding setting,
 * it remains when that server ends, and is lost when the host reboots.
 */
const FORWARDING_MARK = `${TABLE_PREFIX}forwarding`;
/** Networks of four addresses, two of them usable, in a /16. Its last 256 addresses are for an uplink. */
const NETWORKS = 16_320;
/** Zones of the kernel's connection tracking; 0 is that of all who name none. */
const ZONES = 65_535;
const POLL_INTERVAL_MS = 1_000;

export function interfacePrefix(digest: string): string {
  return `cp${digest.slice(0, 6)}`;
}

/**
 * Connects sandboxes to the internet with a veth pair each and one table of rules for all. The rules match interfaces
 * by prefix, so sandboxes without own rules need no change to them. A sandbox with rules has two chains and two sets,
 * found by the name of its interface.
 */
export class Egress {
  readonly #options: EgressOptions;
  readonly #closing = new AbortController();
  #looking: Promise<void> | undefined;
  #hostAddresses: readonly string[] = [];
  readonly #used = new Set<number>();
  /** Where the search for a free network goes on, so that one rests for as long as possible. */
  #next = 0;
  /**
   * Zones of the connections that sandboxes begin. A network gets another zone with the end of its sandbox: the kernel
   * keeps entries of connections for as long as packets come from outside, and would pass them on to the next one.
   */
  #firstZone = 1 + Math.floor(Math.random() * ZONES);
  readonly #zones = new Map<number, number>();
  /** Blocked services that sandboxes reach all the same, by network. Those of an earlier server are forgotten. */
  readonly #services = new Map<number, readonly Service[]>();
  /** Used networks that may have own rules. */
  readonly #restricted = new Set<number>();

  constructor(options: EgressOptions) {
    this.#options = options;
  }

  get description(): string {
    return this.#options.uplink?.description ?? "veth and nftables, on the network of this host";
  }

  /**
   * Replaces the common rules of an earlier server. The rules of its sandboxes stay, so that they are always in force.
   * @throws Error with what is missing.
   */
  async open(): Promise<void> {
    await this.#options.uplink?.open();
    await this.#run(["ip", "-Version"]);
    await this.#readZones();
    await this.#applyRules();
    await this.#run(["nft", "flush", "set", "inet", this.#table, "services"]);
    if (this.#options.uplink !== undefined) {
      await this.#run(["tee", FORWARDING], "1");
      this.#looking = this.#maintain(this.#options.uplink);
      return;
    }
    if ((await readFile(FORWARDING, "utf8")).trim() === "1") return;
    await this.#run(["nft", "add", "table", "inet", FORWARDING_MARK]);
    await writeFile(FORWARDING, "1");
  }

  /**
   * Removes the rules, unless remaining sandboxes need them. The last installation turns forwarding off again, if an
   * installation, not the host, turned it on.
   */
  async close(isInUse: boolean): Promise<void> {
    using _claim = this.#options.claim;
    this.#closing.abort();
    await this.#looking;
    if (isInUse) return;
    if (this.#options.uplink !== undefined) {
      await this.#options.uplink.remove();
      return;
    }
    await this.#options.launcher.run(["nft", "delete", "table", "inet", this.#table]);
    const before = await this.#tables();
    if (!before.includes(FORWARDING_MARK) || before.length > 1) return;
    await writeFile(FORWARDING, "0");
    // Another installation creates its table before it checks forwarding.
    if ((await this.#tables()).length > 1) await writeFile(FORWARDING, "1");
    else await this.#options.launcher.run(["nft", "delete", "table", "inet", FORWARDING_MARK]);
  }

  /**
   * Allocates a network for a sandbox.
   * @param services those that it reaches although they are blocked. @throws SandboxError resource_exhausted
   */
  take(services: readonly Service[] = []): number {
    for (let count = 0; count < NETWORKS; count++) {
      const network = this.#next;
      this.#next = (network + 1) % NETWORKS;
      if (this.#used.has(network)) continue;
      this.#used.add(network);
      if (services.length > 0) this.#services.set(network, services);
      return network;
    }
    throw new SandboxError("addresses_exhausted", "all networks for sandboxes are in use");
  }

  reclaim(network: number, isRestricted: boolean): void {
    this.#used.add(network);
    if (isRestricted) this.#restricted.add(network);
  }

  release(network: number): void {
    this.#used.delete(network);
  }

  /**
   * Replaces the rules of one network, connected or not. Forbidden traffic is blocked from then on in both directions,
   * on existing connections too.
   */
  async restrict(network: number, rules: EgressRules): Promise<void> {
    const isWithoutRules = rules.allowOut.length + rules.denyOut.length === 0;
    if (isWithoutRules && !this.#restricted.has(network)) return;
    this.#restricted.add(network);
    if (isWithoutRules) await this.#unrestrict(network);
    else await this.#run(["nft", "-f", "-"], this.#rulesOf(network, rules));
  }

  async connect(init: Init, network: number): Promise<void> {
    const { host, guest } = this.#addresses(network);
    const name = this.#interface(network);
    await this.#run(
      ["ip", "-batch", "-"],
      `link add ${name} type veth peer name eth0 netns ${init.pid}
address add ${host}/30 dev ${name}
link set ${name} up
`,
    );
    await this.#run(
      [...insideOf(init), "ip", "-batch", "-"],
      `address add ${guest}/30 dev eth0
link set eth0 up
route add default via ${host}
`,
    );
    await this.#changeServices("add", network);
  }

  async #changeServices(verb: "add" | "delete", network: number): Promise<void> {
    const services = this.#services.get(network);
    if (services === undefined) return;
    const elements = services.map(
      ({ address, port }) => `"${this.#interface(network)}" . ${address} . ${port}`,
    );
    const line = `${verb} element inet ${this.#table} services { ${elements.join(", ")} }\n`;
    if (verb === "add") await this.#run(["nft", "-f", "-"], line);
    else await this.#tryTo(["nft", "-f", "-"], line);
  }

  /**
   * Connects a sandbox of an earlier server whose uplink is gone. One that had rules reaches nothing until it gets them
   * again.
   */
  async reconnect(init: Init, network: number): Promise<void> {
    if (this.#options.uplink?.isNew !== true) return;
    if (this.#restricted.has(network)) await this.restrict(network, { allowOut: [], denyOut: [ALL_TRAFFIC] });
    // The kernel removes the other end of a deleted pair with a delay.
    await this.#options.launcher.run([...insideOf(init), "ip", "link", "delete", "eth0"]);
    await this.connect(init, network);
  }

  async disconnect(network: number): Promise<void> {
    // The kernel removes them too, some time after the last process has ended.
    await this.#tryTo(["ip", "link", "delete", this.#interface(network)]);
    await this.#changeServices("delete", network);
    this.#services.delete(network);
    if (this.#restricted.has(network)) await this.#unrestrict(network);
    await this.#renewZone(network);
  }

  async #readZones(): Promise<void> {
    const { code, output } = await this.#tryTo(["nft", "list", "table", "inet", this.#table]);
    if (code !== 0) return;
    this.#firstZone = Number(/ct original zone set (\d+)/.exec(output)?.[1] ?? this.#firstZone);
    const [, elements = ""] = /map zones \{[^}]*elements = \{([^}]*)\}/.exec(output) ?? [];
    for (const [, name = "", zone] of elements.matchAll(/"([^"]+)" : (\d+)/g))
      this.#zones.set(Number.parseInt(name.slice(this.#prefix.length), 36), Number(zone));
  }

  /** Gives a network another zone: packets of connections that were in the last one reach nobody. */
  async #renewZone(network: number): Promise<void> {
    const link = this.#interface(network);
    const table = `inet ${this.#table}`;
    const last = this.#zones.get(network);
    const next = ((last ?? this.#firstZone) % ZONES) + 1;
    const before =
      last === undefined
        ? `add element ${table} renewed { "${link}" }`
        : `delete element ${table} zones { "${link}" }
delete element ${table} current { "${link}" . ${last} }`;
    await this.#run(
      ["nft", "-f", "-"],
      `${before}
add element ${table} zones { "${link}" : ${next} }
add element ${table} current { "${link}" . ${next} }
`,
    );
    this.#zones.set(network, next);
  }

  async removeOthers(): Promise<void> {
    const { output } = await this.#run(["ip", "-oneline", "link", "show"]);
    const known = new Set([...this.#used].map((network) => this.#interface(network)));
    for (const [, name = ""] of output.matchAll(/^\d+: ([^@:\s]+)/gm)) {
      if (!name.startsWith(this.#prefix) || known.has(name)) continue;
      await this.#tryTo(["ip", "link", "delete", name]);
    }
  }

  async #tables(): Promise<string[]> {
    const { output } = await this.#run(["nft", "list", "tables", "inet"]);
    return output.split(/\s+/).filter((word) => word.startsWith(TABLE_PREFIX));
  }

  get #prefix(): string {
    return interfacePrefix(this.#options.digest);
  }

  get #table(): string {
    return TABLE_PREFIX + this.#options.digest;
  }

  #interface(network: number): string {
    return `${this.#prefix}${network.toString(36)}`;
  }

  #addresses(network: number): { readonly host: string; readonly guest: string } {
    const [first = "10", second = "213"] = this.#options.settings.range.split(".");
    const start = network * 4;
    const address = (offset: number): string =>
      `${first}.${second}.${(start + offset) >> 8}.${(start + offset) & 255}`;
    return { host: address(1), guest: address(2) };
  }

  /** @param isCounting false on a kernel that cannot count connections. */
  #rules(isCounting: boolean): string {
    const { blocked, connections, range } = this.#options.settings;
    const ours = `"${this.#prefix}*"`;
    const table = `inet ${this.#table}`;
    // One transaction. Each flushed chain or set is declared first, so that it need not exist.
    return `table ${table} {
  ${setOf("blocked", [])}
  set services {
    type ifname . ipv4_addr . inet_service
  }
  map outgoing {
    type ifname : verdict
  }
  map incoming {
    type ifname : verdict
  }
  map zones {
    typeof iifname : ct zone
  }
  set tracked {
    typeof iifname . ct original zone
    size 65535
    flags dynamic
  }
  set renewed {
    type ifname
  }
  set current {
    typeof oifname . ct original zone
  }
  chain early {
    type filter hook prerouting priority -310; policy accept;
  }
  chain input {
    type filter hook input priority -10; policy accept;
  }
  chain forward {
    type filter hook forward priority -10; policy accept;
  }
  chain postrouting {
    type nat hook postrouting priority 100; policy accept;
  }
}
flush set ${table} blocked
flush chain ${table} early
flush chain ${table} input
flush chain ${table} forward
flush chain ${table} postrouting
table ${table} {
  ${setOf("blocked", [...blocked, range, ...this.#hostAddresses])}
  chain early {
    iifname ${ours} fib saddr . iif oif missing drop
    iifname ${ours} ct original zone set iifname map @zones
    iifname ${ours} ct original zone set ${this.#firstZone}
  }
  chain input {
    iifname . ip daddr . tcp dport @services accept
    iifname ${ours} drop
  }
  chain forward {
    iifname ${ours} meta nfproto ipv6 drop
    ${isCounting ? `iifname ${ours} ct state new add @tracked { iifname . ct original zone ct count over ${connections} } drop` : ""}
    iifname . ip daddr . tcp dport @services accept
    iifname ${ours} ip daddr @blocked drop
    iifname ${ours} iifname vmap @outgoing
    oifname ${ours} oifname vmap @incoming
    oifname ${ours} oifname != @renewed ct original zone != ${this.#firstZone} drop
    oifname @renewed oifname . ct original zone != @current drop
    oifname ${ours} ct state established,related accept
    oifname ${ours} drop
  }
  chain postrouting {
    ip saddr ${range} oifname != ${ours} masquerade
  }
}
`;
  }

  /** Filters packets, not connections, so a change applies to existing connections. */
  #rulesOf(network: number, { allowOut, denyOut }: EgressRules): string {
    const { allow, deny, incoming, outgoing } = namesOf(network);
    const link = this.#interface(network);
    const table = `inet ${this.#table}`;
    return `table ${table} {
  ${setOf(allow, [])}
  ${setOf(deny, [])}
  chain ${outgoing} {
  }
  chain ${incoming} {
  }
}
flush set ${table} ${allow}
flush set ${table} ${deny}
flush chain ${table} ${outgoing}
flush chain ${table} ${incoming}
table ${table} {
  ${setOf(allow, allowOut)}
  ${setOf(deny, denyOut)}
  chain ${outgoing} {
    ip daddr @${allow} return
    ip daddr @${deny} meta l4proto tcp reject with tcp reset
    ip daddr @${deny} reject with icmpx admin-prohibited
  }
  chain ${incoming} {
    ip saddr @${allow} return
    ip saddr @${deny} drop
  }
  map outgoing {
    type ifname : verdict
    elements = { "${link}" : jump ${outgoing} }
  }
  map incoming {
    type ifname : verdict
    elements = { "${link}" : jump ${incoming} }
  }
}
`;
  }

  async #unrestrict(network: number): Promise<void> {
    const { allow, deny, incoming, outgoing } = namesOf(network);
    const link = this.#interface(network);
    const table = `inet ${this.#table}`;
    await this.#run(
      ["nft", "-f", "-"],
      `${this.#rulesOf(network, { allowOut: [], denyOut: [] })}
delete element ${table} outgoing { "${link}" }
delete element ${table} incoming { "${link}" }
delete chain ${table} ${outgoing}
delete chain ${table} ${incoming}
delete set ${table} ${allow}
delete set ${table} ${deny}
`,
    );
    this.#restricted.delete(network);
  }

  async #maintain(uplink: Uplink): Promise<void> {
    const { signal } = this.#closing;
    try {
      for await (const _ of setInterval(POLL_INTERVAL_MS, undefined, { signal, ref: false })) {
        try {
          await uplink.keep();
          if (hostAddresses().join() !== this.#hostAddresses.join()) await this.#applyRules();
        } catch (error) {
          this.#options.log.error({ err: error }, "egress of sandboxes is impaired");
        }
      }
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }

  async #applyRules(): Promise<void> {
    // The uplink's packets come from a program of the host, so no chain for forwarded packets protects the host.
    if (this.#options.uplink !== undefined) this.#hostAddresses = hostAddresses();
    // All that use the host's network share its kernel's table of connections.
    const { code, output } = await this.#tryTo(["nft", "-f", "-"], this.#rules(true));
    if (code === 0) return;
    await this.#run(["nft", "-f", "-"], this.#rules(false));
    this.#options.log.warn(
      { reason: output.trim() },
      "connections of sandboxes are not limited: no connlimit",
    );
  }

  async #run(argv: readonly string[], input?: string): Promise<{ readonly output: string }> {
    const { code, output } = await this.#tryTo(argv, input);
    if (code === 0) return { output };
    const [program = ""] = argv;
    if (code === 127) throw new Error(`egress needs the program ${program}, which this host does not have`);
    throw new Error(`${argv.slice(0, 2).join(" ")} failed: ${output.trim()}`);
  }

  async #tryTo(argv: readonly string[], input?: string): Promise<HostRun> {
    return this.#options.launcher.run(this.#options.uplink?.inNamespace(argv) ?? argv, input);
  }
}

/** True for rules that leave no destination open, so that a sandbox needs no network. */
export function areClosed({ allowOut, denyOut }: EgressRules): boolean {
  return allowOut.length === 0 && denyOut.includes(ALL_TRAFFIC);
}

/** Refuses domain names, which nftables cannot match. @throws SandboxError invalid_argument */
export function checkEgressRules({ allowOut }: EgressRules): void {
  const domain = allowOut.find((destination) => !isAddressRange(destination));
  if (domain === undefined) return;
  const text = `network.allowOut: this server does not support domain names ('${domain}'): name addresses or ranges`;
  throw new SandboxError("network_rules_invalid", text);
}

function insideOf({ pid }: Init): readonly string[] {
  return ["nsenter", `--net=/proc/${pid}/ns/net`, "--"];
}

function hostAddresses(): readonly string[] {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.filter(({ family }) => family === "IPv4").map(({ address }) => address);
}

function namesOf(network: number) {
  const number = network.toString(36);
  return {
    allow: `allow_${number}`,
    deny: `deny_${number}`,
    outgoing: `outgoing_${number}`,
    incoming: `incoming_${number}`,
  };
}

/** A set of IPv4 destinations; sandboxes have no IPv6. */
function setOf(name: string, destinations: readonly string[]): string {
  const addresses = destinations.filter((destination) => !destination.includes(":"));
  const elements = addresses.length === 0 ? "" : `elements = { ${addresses.join(", ")} }`;
  return `set ${name} {
    type ipv4_addr
    flags interval
    auto-merge
    ${elements}
  }`;
}
