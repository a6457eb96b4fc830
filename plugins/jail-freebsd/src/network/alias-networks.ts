import type { EgressRules } from "@coppice/core/backend";
import type { AddressPool, Lease } from "./address-pool.js";
import { aliasRules } from "./alias-rules.js";
import { destinationTest } from "./egress-policy.js";
import type { Host } from "../host/host.js";
import type { HostProblem } from "../host/host-problem.js";
import type { JailStack } from "../jails/jail-conf.js";
import type { NetworkSettings } from "../network-config.js";
import { PfAnchors } from "./pf-anchors.js";
import { translatedStatesOf } from "./pf-states.js";
import type { SandboxNetworks } from "./sandbox-networks.js";

export interface AliasNetworksOptions {
  readonly host: Host;
  readonly settings: NetworkSettings;
  readonly addresses: AddressPool;
  /** Directory of the roots of this installation's jails. */
  readonly roots: string;
}

/** With more connections to cut than this, one command cuts all of the sandbox. */
const MOST_KILLS = 32;
const MISSING = /can't assign requested address|does not exist/i;
/**
 * Line of sockstat(1) for a socket that listens on every IPv4 address. A program's name may have blanks, and run into its
 * process id.
 */
const LISTENER = /^\S+\s+(\S+).*\s(?:tcp|udp)(?:4|46)\s+\*:(\d+)\s/gm;

/**
 * Networks of jails that share the host's stack. Each has an alias of a loopback interface, which jail(8) adds and
 * removes, and an anchor of pf(4) that translates its address and filters. The number of the address names the anchor,
 * and the tag and label of the connections.
 */
export class AliasNetworks implements SandboxNetworks {
  readonly addresses: AddressPool;
  readonly #host: Host;
  readonly #settings: NetworkSettings;
  readonly #anchors: PfAnchors;
  readonly #roots: string;

  constructor({ addresses, host, roots, settings }: AliasNetworksOptions) {
    this.addresses = addresses;
    this.#host = host;
    this.#settings = settings;
    this.#roots = roots;
    this.#anchors = new PfAnchors(host, settings.anchor);
  }

  async problems(): Promise<readonly HostProblem[]> {
    const { loopback, outside } = this.#settings;
    const problems: HostProblem[] = [];
    if ((await this.#host.try("ifconfig", [loopback])).code !== 0) {
      const fix = `ifconfig ${loopback} create up, and the lines of rc.conf in docs/freebsd.md`;
      problems.push({ message: `there is no interface ${loopback}`, fix });
    }
    const leading = await this.#host.try("ifconfig", [outside]);
    if (!/^\s+inet /m.test(leading.stdout)) {
      const fix = "set jail-freebsd.network.outside to the interface that leads out, and in pf.conf too";
      problems.push({ message: `there is no interface ${outside} with an IPv4 address`, fix });
    }
    // A server removes what has an address of its range and no lease.
    for (const { address, jail, path } of await this.#jails()) {
      if (path.startsWith(`${this.#roots}/`)) continue;
      const fix = "give each server of this host its own jail-freebsd.network.range and anchor";
      problems.push({ message: `jail ${jail} of somebody else has the address ${address}`, fix });
    }
    return [...problems, ...(await this.gaps()), ...(await this.#listenerProblems())];
  }

  async gaps(): Promise<readonly HostProblem[]> {
    const { loopback, outside } = this.#settings;
    const problems: HostProblem[] = [];
    const { stdout: interfaces } = await this.#host.try("pfctl", ["-v", "-s", "Interfaces"]);
    for (const link of ["lo0", loopback, outside]) {
      if (!interfaces.split("\n").includes(`${link} (skip)`)) continue;
      const message = `pf skips ${link}: sandboxes reach the host, and each other, there`;
      problems.push({ message, fix: `remove ${link} from set skip in pf.conf, then service pf reload` });
    }
    return [...problems, ...(await this.#anchors.problems(["nat-anchor", "anchor"]))];
  }

  /** A jail that shares the stack cannot reach even itself without an address. */
  needsAddress(): boolean {
    return true;
  }

  stackOf(lease: Lease | undefined): JailStack {
    if (lease === undefined) throw new Error("a sandbox that shares the stack of the host needs an address");
    return { kind: "shared", link: this.#settings.loopback, address: lease.address };
  }

  async prepare(lease: Lease, rules: EgressRules): Promise<void> {
    const { hostPorts, outside } = this.#settings;
    const { anchor, tag } = this.#namesOf(lease);
    const policy = { ...this.#settings, rules };
    const { address } = lease;
    await this.#anchors.load(anchor, aliasRules({ address, outside, tag, hostPorts, policy }));
  }

  /** jail(8) connects it. */
  async connect(): Promise<void> {}

  async restrict(lease: Lease, rules: EgressRules): Promise<void> {
    await this.prepare(lease, rules);
    const isOpen = destinationTest({ ...this.#settings, rules });
    // If the host has too many states to list, all connections are cut.
    const listing = await this.#host
      .run("pfctl", ["-i", this.#settings.outside, "-vv", "-s", "states"])
      .catch(() => undefined);
    const closed =
      listing === undefined
        ? undefined
        : translatedStatesOf(listing, lease.address).filter(({ destination }) => !isOpen(destination));
    if (closed === undefined || closed.length > MOST_KILLS) return this.#cutAll(lease);
    for (const { id } of closed) await this.#host.run("pfctl", ["-q", "-k", "id", "-k", id]);
  }

  /** The interface is the host's. */
  async unplug(): Promise<void> {}

  async disconnect(lease: Lease): Promise<void> {
    await this.#cutAll(lease);
    await this.#anchors.flush(this.#namesOf(lease).anchor);
    await this.#removeAlias(lease.address);
  }

  async found(): Promise<ReadonlyMap<string, string>> {
    return new Map((await this.#jails()).map(({ address, jail }) => [jail, address]));
  }

  /** Jails with an address of the range, whoever made them. */
  async #jails() {
    const { stdout } = await this.#host.try("jls", ["name", "ip4.addr", "path"]);
    return stdout.split("\n").flatMap((line) => {
      const [jail = "", addresses = "", ...path] = line.split(" ");
      const address = addresses.split(",").find((each) => this.addresses.numberOf(each) !== undefined);
      return address === undefined ? [] : [{ jail, address, path: path.join(" ") }];
    });
  }

  async removeOthers(): Promise<void> {
    const { stdout } = await this.#host.try("ifconfig", [this.#settings.loopback]);
    for (const [, address = ""] of stdout.matchAll(/^\s+inet ([\d.]+) /gm)) {
      const number = this.addresses.numberOf(address);
      if (number !== undefined) await this.addresses.whileFree(number, () => this.#removeAlias(address));
    }
    for (const name of await this.#anchors.names()) {
      const number = Number(/^alias(\d+)$/.exec(name)?.[1]);
      await this.addresses.whileFree(number, () => this.#anchors.flush(name));
    }
  }

  /** Programs of the host that a sandbox reaches at its own address. */
  async #listenerProblems(): Promise<readonly HostProblem[]> {
    const { hostPorts } = this.#settings;
    const { stdout } = await this.#host.try("sockstat", ["-q", "-4", "-6", "-l"]);
    const found = new Map<string, string>();
    for (const [, program = "", port = ""] of stdout.matchAll(LISTENER)) {
      if (!hostPorts.includes(Number(port))) found.set(port, program);
    }
    return [...found].map(([port, program]) => ({
      message: `${program} listens at port ${port} of every address, those of sandboxes included`,
      fix: `let it listen on addresses of the host alone, or put ${port} into jail-freebsd.network.hostPorts`,
    }));
  }

  async #removeAlias(address: string): Promise<void> {
    await this.#host.remove("ifconfig", [this.#settings.loopback, "inet", address, "-alias"], MISSING);
  }

  async #cutAll(lease: Lease): Promise<void> {
    await this.#host.run("pfctl", ["-q", "-k", "label", "-k", this.#namesOf(lease).tag]);
  }

  #namesOf({ number }: Lease) {
    const anchor = `alias${number}`;
    return { anchor, tag: `${this.#settings.anchor}_${anchor}` };
  }
}
