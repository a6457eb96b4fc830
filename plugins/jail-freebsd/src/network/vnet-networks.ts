import { ALL_TRAFFIC, type EgressRules } from "@coppice/core/backend";
import type { AddressPool, Lease } from "./address-pool.js";
import { bridgeRules, destinationTest, statesOf } from "./egress-policy.js";
import type { Host } from "../host/host.js";
import type { HostProblem } from "../host/host-facts.js";
import type { NetworkSettings } from "../jail-freebsd-config.js";

interface VnetNetworksOptions {
  readonly host: Host;
  readonly settings: NetworkSettings;
  readonly addresses: AddressPool;
  readonly digest: string;
}

/** With connections to more destinations to cut than this, one command cuts all. */
const MOST_KILLS = 32;
const GROUP = "coppice_";
// arp(8) of FreeBSD 14 prints the errors of netlink(4).
const MISSING = /does not exist|cannot locate|can't locate|not found|No such file or directory/i;
/** Without these, pf does not see packets from a bridge member to the host. */
const NEEDED_SYSCTLS = [
  "net.inet.ip.forwarding",
  "net.link.bridge.pfil_member",
  "net.link.bridge.pfil_local_phys",
];

/**
 * Networks of jails with a separate stack. Each has an epair(4), whose host end is a private member of one bridge, and
 * an anchor of pf(4). The number of the address names all parts, so that they can be removed from any half-built state.
 */
export class VnetNetworks {
  readonly addresses: AddressPool;
  readonly #host: Host;
  readonly #settings: NetworkSettings;
  readonly #anchors: PfAnchors;
  readonly #group: string;

  constructor({ addresses, digest, host, settings }: VnetNetworksOptions) {
    this.addresses = addresses;
    this.#host = host;
    this.#settings = settings;
    this.#anchors = new PfAnchors(host, settings.anchor);
    // A name of an interface group must not end with a digit.
    this.#group = `${GROUP}${digest.slice(0, 6)}_`;
  }

  async problems(): Promise<readonly HostProblem[]> {
    const { bridge } = this.#settings;
    const problems: HostProblem[] = [];
    const { stdout: shown } = await this.#host.try("ifconfig", [bridge]);
    const address = `${this.addresses.gateway}/${this.addresses.prefixLength}`;
    if (!shown.includes(`inet ${this.addresses.gateway} `)) {
      problems.push({
        message: `there is no bridge ${bridge} with the address ${address}`,
        fix: `ifconfig bridge create name ${bridge} inet ${address} up, and the lines of rc.conf in docs/freebsd.md`,
      });
    }
    // Their number is all that says whose they are: a server would remove those of another one.
    for (const { groups, link } of await this.#links()) {
      if (!groups.some((group) => group.startsWith(GROUP) && group !== this.#group)) continue;
      const fix = "give each server of this host its own jail-freebsd.network.range, firstEpair and anchor";
      problems.push({ message: `${link} belongs to another server`, fix });
    }
    return [...problems, ...(await this.gaps())];
  }

  /** The problems with which pf(4) does not filter what sandboxes send; also part of `problems`. */
  async gaps(): Promise<readonly HostProblem[]> {
    const problems: HostProblem[] = [];
    for (const name of NEEDED_SYSCTLS) {
      const { stdout } = await this.#host.try("sysctl", ["-n", name]);
      if (stdout.trim() === "1") continue;
      problems.push({
        message: `${name} is not 1`,
        fix: `sysctl ${name}=1, and put it into /etc/sysctl.conf`,
      });
    }
    return [...problems, ...(await this.#anchors.problems())];
  }

  needsAddress({ allowOut, denyOut }: EgressRules): boolean {
    return allowOut.length > 0 || !denyOut.includes(ALL_TRAFFIC) || this.#settings.resolvers.length > 0;
  }

  async prepare(lease: Lease, rules: EgressRules): Promise<void> {
    const { link } = this.#namesOf(lease);
    const { bridge } = this.#settings;
    const policy = { ...this.#settings, rules };
    await this.#anchors.load(link, bridgeRules({ link, bridge, address: lease.address, policy }));
  }

  async connect(jail: string, lease: Lease): Promise<void> {
    const { bridge } = this.#settings;
    const { epair, link, inner, hardware } = this.#namesOf(lease);
    await this.#host.run("ifconfig", [epair, "create"]);
    await this.#host.run("ifconfig", [inner, "ether", hardware]);
    await this.#host.run("ifconfig", [inner, "vnet", jail]);
    const inside = `${lease.address}/${this.addresses.prefixLength}`;
    await this.#host.run("ifconfig", ["-j", jail, inner, "inet", inside, "up"]);
    await this.#host.run("ifconfig", [link, "group", this.#group, "description", jail, "up"]);
    // The bridge must not learn addresses from packets of jails.
    const member = ["addm", link, "private", link, "-learn", link, "static", link, hardware];
    await this.#host.run("ifconfig", [bridge, ...member]);
    await this.#host.run("arp", ["-S", lease.address, hardware]);
    await this.#host.run("route", ["-j", jail, "-n", "add", "default", this.addresses.gateway]);
  }

  /**
   * Replaces the rules of a sandbox and cuts the connections that they forbid, or all of its connections when those are
   * too many.
   * @throws SandboxError invalid_argument, with the old rules in force.
   */
  async restrict(lease: Lease, rules: EgressRules): Promise<void> {
    const { bridge } = this.#settings;
    await this.prepare(lease, rules);
    const isOpen = destinationTest({ ...this.#settings, rules });
    // If the host has too many states to list, all connections are cut.
    const states = await this.#host.run("pfctl", ["-i", bridge, "-s", "states"]).catch(() => undefined);
    const closed =
      states === undefined
        ? undefined
        : new Set(
            statesOf(states, lease.address)
              .filter((destination) => !isOpen(destination))
              .map(({ address }) => address),
          );
    if (closed === undefined || closed.size > MOST_KILLS) return this.#cut(lease);
    for (const destination of closed) await this.#cut(lease, destination);
  }

  /**
   * Takes a sandbox's own interface, before its jail is removed. A missing one is fine. The kernel gives the interfaces of a removed jail back to the host, under the names that root of the sandbox gave
   * them: a second `em0` would take the addresses of the first one from the rules of pf(4).
   */
  async unplug(lease: Lease): Promise<void> {
    await this.#host.remove("ifconfig", [this.#namesOf(lease).link, "destroy"], MISSING);
  }

  /** Removes the rest of the network of an unplugged sandbox whose jail is gone or not created yet. Keeps the lease. */
  async disconnect(lease: Lease): Promise<void> {
    await this.#cut(lease);
    await this.#anchors.flush(this.#namesOf(lease).link);
    await this.#host.remove("arp", ["-d", lease.address], MISSING);
  }

  /** Addresses that jails on this host use, by jail name, regardless of leases. */
  async found(): Promise<ReadonlyMap<string, string>> {
    const found = new Map<string, string>();
    for (const { address, groups, jail } of await this.#links()) {
      if (jail !== undefined && groups.includes(this.#group)) found.set(jail, address);
    }
    return found;
  }

  async removeOthers(): Promise<void> {
    const links = (await this.#host.try("ifconfig", ["-g", this.#group])).stdout.split(/\s+/);
    for (const link of links) {
      if (link === "") continue;
      await this.addresses.whileFree(this.#numberOf(link), () =>
        this.#host.remove("ifconfig", [link, "destroy"], MISSING),
      );
    }
    for (const name of await this.#anchors.names())
      await this.addresses.whileFree(this.#numberOf(name), () => this.#anchors.flush(name));
  }

  /** Epairs with the number of an address, whoever made them. */
  async #links() {
    const { stdout } = await this.#host.try("ifconfig", ["-a"]);
    // Each interface begins in the first column.
    return stdout.split(/^(?=\S)/m).flatMap((text) => {
      const [, link = ""] = /^(\w+): /.exec(text) ?? [];
      const [, jail] = /^\s+description: (\S+)$/m.exec(text) ?? [];
      const [, groups = ""] = /^\s+groups: (.*)$/m.exec(text) ?? [];
      const address = this.addresses.addressAt(this.#numberOf(link));
      return address === undefined ? [] : [{ link, jail, address, groups: groups.split(" ") }];
    });
  }

  /** Ends connections to one destination, or to all, including translated ones. */
  async #cut({ address }: Lease, destination?: string): Promise<void> {
    const hosts = ["-k", address, ...(destination === undefined ? [] : ["-k", destination])];
    await this.#host.run("pfctl", ["-q", "-M", "-i", this.#settings.bridge, ...hosts]);
  }

  #namesOf({ address, number }: Lease) {
    const epair = `epair${this.#settings.firstEpair + number}`;
    const bytes = address.split(".").map((part) => Number(part).toString(16).padStart(2, "0"));
    return {
      epair,
      link: `${epair}a`,
      inner: `${epair}b`,
      // Locally administered, and unique on this bridge.
      hardware: ["02", "c0", ...bytes].join(":"),
    };
  }

  /** Number of the address that names an epair or anchor. */
  #numberOf(link: string): number {
    return Number(/^epair(\d+)a$/.exec(link)?.[1]) - this.#settings.firstEpair;
  }
}

/** Anchors of pf(4) below one parent, each with the rules of one sandbox. */
class PfAnchors {
  readonly #host: Host;
  readonly #parent: string;

  /** @param parent name in `anchor "<parent>/*"` of pf.conf. */
  constructor(host: Host, parent: string) {
    this.#host = host;
    this.#parent = parent;
  }

  async problems(): Promise<readonly HostProblem[]> {
    const problems: HostProblem[] = [];
    const info = await this.#host.try("pfctl", ["-s", "info"]);
    if (!/^Status: Enabled/m.test(info.stdout))
      problems.push({ message: "pf is not enabled", fix: "sysrc pf_enable=YES && service pf start" });
    const shown = await this.#host.try("pfctl", ["-s", "rules"]);
    const line = `anchor "${this.#parent}/*"`;
    if (!shown.stdout.split("\n").some((rule) => rule.startsWith(line))) {
      const fix = "take over config/freebsd/pf.conf, then service pf reload";
      problems.push({ message: `pf's rules have no ${line}`, fix });
    }
    return problems;
  }

  /** Replaces the contents of an anchor atomically. @throws HostCommandError, with the old rules in force. */
  async load(name: string, rules: string): Promise<void> {
    await this.#host.run("pfctl", ["-q", "-a", `${this.#parent}/${name}`, "-f", "-"], { input: rules });
  }

  /**
   * Removes an anchor; a missing one is fine. Its states stay. `-F all` would fail for an anchor that is missing or has
   * no tables, where pfctl reports the error of DIOCRCLRTABLES; an empty ruleset is loaded everywhere.
   */
  async flush(name: string): Promise<void> {
    await this.load(name, "");
  }

  async names(): Promise<readonly string[]> {
    const { stdout } = await this.#host.try("pfctl", ["-a", this.#parent, "-s", "Anchors"]);
    const start = `${this.#parent}/`;
    return stdout.split(/\s+/).flatMap((path) => (path.startsWith(start) ? [path.slice(start.length)] : []));
  }
}
