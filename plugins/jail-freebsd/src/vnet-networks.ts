import type { EgressRules } from "@coppice/core/backend";
import { type Host, HostCommandError, type HostProgram } from "./host.js";
import { AddressPool, type Lease } from "./address-pool.js";
import { type AnchorOptions, anchorRules, destinationTest } from "./anchor-rules.js";
import type { HostProblem } from "./host-problems.js";
import type { NetworkSettings } from "./network-config.js";
import { statesOf } from "./pf-states.js";

/** Connections to more destinations than this are cut together with the rest, by one command. */
const MOST_KILLS = 32;
const MISSING = /does not exist|cannot locate|can't locate|not found/i;
/** Without these pf does not see what a member of a bridge sends to the host. */
const NEEDED_SYSCTLS = [
  "net.inet.ip.forwarding",
  "net.link.bridge.pfil_member",
  "net.link.bridge.pfil_local_phys",
];

/**
 * Connects jails that have a stack of their own: an epair(4) each, the host's end of it a private member of one
 * bridge, and an anchor of pf(4) with the rules of each. All that a sandbox has there is named by the number of
 * its address, so that it can be removed whoever made it and however far that came.
 */
export class VnetNetworks {
  readonly #host: Host;
  readonly #settings: NetworkSettings;
  readonly #group: string;
  readonly #pool: AddressPool;

  /** @param digest of the installation; the epairs of this one are known by it. */
  constructor(host: Host, settings: NetworkSettings, digest: string) {
    this.#host = host;
    this.#settings = settings;
    // The name of a group of interfaces does not end with a digit.
    this.#group = `coppice_${digest.slice(0, 6)}_`;
    this.#pool = new AddressPool(settings.range);
  }

  /** All that the host lacks. */
  async problems(): Promise<readonly HostProblem[]> {
    const { anchor, bridge } = this.#settings;
    const problems: HostProblem[] = [];
    const { stdout: shown } = await this.#host.try("ifconfig", [bridge]);
    const address = `${this.#pool.gateway}/${this.#pool.prefixLength}`;
    if (!shown.includes(`inet ${this.#pool.gateway} `)) {
      problems.push({
        message: `there is no bridge ${bridge} with the address ${address}`,
        fix: `ifconfig bridge create name ${bridge} inet ${address} up, and the lines of rc.conf in docs/freebsd.md`,
      });
    }
    for (const name of NEEDED_SYSCTLS) {
      const { stdout } = await this.#host.try("sysctl", ["-n", name]);
      if (stdout.trim() === "1") continue;
      problems.push({
        message: `${name} is not 1`,
        fix: `sysctl ${name}=1, and put it into /etc/sysctl.conf`,
      });
    }
    const info = await this.#host.try("pfctl", ["-s", "info"]);
    if (!/^Status: Enabled/m.test(info.stdout)) {
      problems.push({ message: "pf is not enabled", fix: "sysrc pf_enable=YES && service pf start" });
    }
    const rules = await this.#host.try("pfctl", ["-s", "rules"]);
    if (!rules.stdout.includes(`anchor "${anchor}/*"`)) {
      problems.push({
        message: `pf's rules have no anchor "${anchor}/*"`,
        fix: "take over config/freebsd/pf.conf, then service pf reload",
      });
    }
    return problems;
  }

  /** Whether there are name servers that every sandbox may ask. */
  get hasResolvers(): boolean {
    return this.#settings.resolvers.length > 0;
  }

  /** An address for a sandbox. @throws SandboxError resource_exhausted */
  take(): Lease {
    return this.#pool.take();
  }

  /** Says that a sandbox of an earlier server has an address. Undefined for one that is not of this range. */
  retake(address: string): Lease | undefined {
    return this.#pool.retake(address);
  }

  /** Connects a jail that is there and has nothing yet, its rules first. @throws HostCommandError */
  async connect(jail: string, lease: Lease, rules: EgressRules): Promise<void> {
    const { bridge } = this.#settings;
    const { epair, link, inner, hardware } = this.#namesOf(lease);
    await this.#load(lease, rules);
    await this.#host.run("ifconfig", [epair, "create"]);
    await this.#host.run("ifconfig", [inner, "ether", hardware]);
    await this.#host.run("ifconfig", [inner, "vnet", jail]);
    const inside = `${lease.address}/${this.#pool.prefixLength}`;
    await this.#host.run("ifconfig", ["-j", jail, inner, "inet", inside, "up"]);
    await this.#host.run("ifconfig", [link, "group", this.#group, "description", jail, "up"]);
    // Whose an address is, is not learnt from what jails send.
    const member = ["addm", link, "private", link, "-learn", link, "static", link, hardware];
    await this.#host.run("ifconfig", [bridge, ...member]);
    await this.#host.run("arp", ["-S", lease.address, hardware]);
    await this.#host.run("route", ["-j", jail, "-n", "add", "default", this.#pool.gateway]);
  }

  /**
   * Replaces the rules of a sandbox, and cuts the connections that the new ones do not leave open; all of its
   * connections where those lead to too many places.
   * @throws SandboxError invalid_argument, with the rules as they were.
   */
  async restrict(lease: Lease, rules: EgressRules): Promise<void> {
    const { bridge } = this.#settings;
    await this.#load(lease, rules);
    const isOpen = destinationTest(this.#anchorOf(lease, rules));
    // A host with too many states to look through is no reason to leave one that must not be.
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

  /** Gives an address back, after `disconnect` where there was a connection. */
  release(lease: Lease): void {
    this.#pool.release(lease);
  }

  /** Removes what there is of a connection, whose jail is gone. */
  async disconnect(lease: Lease): Promise<void> {
    const { anchor, link } = this.#namesOf(lease);
    await this.#cut(lease);
    await this.#host.run("pfctl", ["-q", "-a", anchor, "-F", "all"]);
    await this.#runIfThere("ifconfig", [link, "destroy"]);
    await this.#runIfThere("arp", ["-d", lease.address]);
  }

  /** Removes epairs and anchors that no sandbox has. */
  async removeOthers(): Promise<void> {
    const used = new Set([...this.#pool.used].map((number) => this.#linkOf(number)));
    const links = (await this.#host.try("ifconfig", ["-g", this.#group])).stdout.split(/\s+/);
    for (const link of links) {
      if (link !== "" && !used.has(link)) await this.#runIfThere("ifconfig", [link, "destroy"]);
    }
    const { anchor } = this.#settings;
    const anchors = (await this.#host.try("pfctl", ["-a", anchor, "-s", "Anchors"])).stdout.split(/\s+/);
    for (const path of anchors) {
      const isUsed = used.has(path.slice(anchor.length + 1));
      if (path.startsWith(`${anchor}/`) && !isUsed) {
        await this.#host.run("pfctl", ["-q", "-a", path, "-F", "all"]);
      }
    }
  }

  async #load(lease: Lease, rules: EgressRules): Promise<void> {
    const { anchor } = this.#namesOf(lease);
    const input = anchorRules(this.#anchorOf(lease, rules));
    await this.#host.run("pfctl", ["-q", "-a", anchor, "-f", "-"], { input });
  }

  /** Ends connections to one destination, or all, also where their addresses are translated. */
  async #cut({ address }: Lease, destination?: string): Promise<void> {
    const hosts = ["-k", address, ...(destination === undefined ? [] : ["-k", destination])];
    await this.#host.run("pfctl", ["-q", "-M", "-i", this.#settings.bridge, ...hosts]);
  }

  #anchorOf(lease: Lease, rules: EgressRules): AnchorOptions {
    const { blocked, bridge, connections, resolvers } = this.#settings;
    const { link } = this.#namesOf(lease);
    return { link, bridge, address: lease.address, blocked, resolvers, connections, rules };
  }

  #namesOf({ address, number }: Lease) {
    const link = this.#linkOf(number);
    const epair = link.slice(0, -1);
    const bytes = address.split(".").map((part) => Number(part).toString(16).padStart(2, "0"));
    return {
      epair,
      link,
      inner: `${epair}b`,
      // Locally administered, and of nobody else on this bridge.
      hardware: ["02", "c0", ...bytes].join(":"),
      anchor: `${this.#settings.anchor}/${link}`,
    };
  }

  #linkOf(number: number): string {
    return `epair${this.#settings.firstEpair + number}a`;
  }

  async #runIfThere(program: HostProgram, args: readonly string[]): Promise<void> {
    const result = await this.#host.try(program, args);
    if (result.code === 0 || MISSING.test(result.stderr)) return;
    throw new HostCommandError(program, args, result);
  }
}
