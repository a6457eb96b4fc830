import { readFile, writeFile } from "node:fs/promises";
import { SandboxError } from "@coppice/core";
import type { Init, Launcher } from "./launcher.js";

export interface EgressSettings {
  /** Private range that the addresses of sandboxes are from, an IPv4 /16: `10.213.0.0/16`. */
  readonly range: string;
  /** IPv4 ranges that sandboxes do not reach. */
  readonly blocked: readonly string[];
}

const FORWARDING = "/proc/sys/net/ipv4/ip_forward";
/** Networks of four addresses, two of them usable, in a /16. */
const NETWORKS = 16_384;

/**
 * Lets sandboxes out to the internet: a pair of interfaces each, one table of rules for all of them. The
 * rules name interfaces by their prefix, so a sandbox comes and goes without a change to them.
 */
export class Egress {
  readonly #launcher: Launcher;
  readonly #settings: EgressSettings;
  readonly #digest: string;
  readonly #used = new Set<number>();
  #hasTurnedOnForwarding = false;

  /** @param digest of the installation; names its interfaces and its table. */
  constructor(launcher: Launcher, settings: EgressSettings, digest: string) {
    this.#launcher = launcher;
    this.#settings = settings;
    this.#digest = digest;
  }

  /** Puts the rules in place of those of an earlier server. @throws Error that says what is missing. */
  async open(): Promise<void> {
    await this.#run(["ip", "-Version"]);
    await this.#run(["nft", "-f", "-"], this.#rules());
    if ((await readFile(FORWARDING, "utf8")).trim() === "1") return;
    this.#hasTurnedOnForwarding = true;
    await writeFile(FORWARDING, "1");
  }

  /** Takes the rules away, unless sandboxes that live on are held by them. */
  async close(isInUse: boolean): Promise<void> {
    if (isInUse) return;
    await this.#launcher.run(["nft", "delete", "table", "inet", this.#table]);
    if (this.#hasTurnedOnForwarding) await writeFile(FORWARDING, "0");
  }

  /** A network of its own for a sandbox. @throws SandboxError resource_exhausted */
  take(): number {
    for (let network = 0; network < NETWORKS; network++) {
      if (this.#used.has(network)) continue;
      this.#used.add(network);
      return network;
    }
    throw new SandboxError("resource_exhausted", "all networks for sandboxes are in use");
  }

  /** Says that a sandbox of an earlier server has it. */
  retake(network: number): void {
    this.#used.add(network);
  }

  /** Connects a sandbox. */
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
      ["nsenter", `--net=/proc/${init.pid}/ns/net`, "ip", "-batch", "-"],
      `address add ${guest}/30 dev eth0
link set eth0 up
route add default via ${host}
`,
    );
  }

  /** Removes the interfaces of a sandbox, which need not be there. */
  async disconnect(network: number): Promise<void> {
    // The kernel removes them too, some time after the last process has ended.
    await this.#launcher.run(["ip", "link", "delete", this.#interface(network)]);
    this.#used.delete(network);
  }

  /** Removes the interfaces of sandboxes that are gone. */
  async removeOthers(): Promise<void> {
    const { output } = await this.#run(["ip", "-oneline", "link", "show"]);
    const known = new Set([...this.#used].map((network) => this.#interface(network)));
    for (const [, name = ""] of output.matchAll(/^\d+: ([^@:\s]+)/gm)) {
      if (!name.startsWith(this.#prefix) || known.has(name)) continue;
      await this.#launcher.run(["ip", "link", "delete", name]);
    }
  }

  get #prefix(): string {
    return `cp${this.#digest.slice(0, 6)}`;
  }

  get #table(): string {
    return `coppice_${this.#digest}`;
  }

  #interface(network: number): string {
    return `${this.#prefix}${network.toString(36)}`;
  }

  #addresses(network: number): { readonly host: string; readonly guest: string } {
    const [first = "10", second = "213"] = this.#settings.range.split(".");
    const start = network * 4;
    const address = (offset: number): string =>
      `${first}.${second}.${(start + offset) >> 8}.${(start + offset) & 255}`;
    return { host: address(1), guest: address(2) };
  }

  #rules(): string {
    const { blocked, range } = this.#settings;
    const ours = `"${this.#prefix}*"`;
    const table = `table inet ${this.#table}`;
    // Made before it is deleted, so that it does not matter whether there is one.
    return `${table}
delete ${table}
${table} {
  set blocked {
    type ipv4_addr
    flags interval
    auto-merge
    elements = { ${[...blocked, range].join(", ")} }
  }
  chain input {
    type filter hook input priority -10; policy accept;
    iifname ${ours} drop
  }
  chain forward {
    type filter hook forward priority -10; policy accept;
    iifname ${ours} meta nfproto ipv6 drop
    iifname ${ours} ip daddr @blocked drop
    oifname ${ours} ct state established,related accept
    oifname ${ours} drop
  }
  chain postrouting {
    type nat hook postrouting priority 100; policy accept;
    ip saddr ${range} oifname != ${ours} masquerade
  }
}
`;
  }

  async #run(argv: readonly string[], input?: string): Promise<{ readonly output: string }> {
    const { code, output } = await this.#launcher.run(argv, input);
    if (code === 0) return { output };
    const [program = ""] = argv;
    if (code === 127) throw new Error(`egress needs the program ${program}, which this host does not have`);
    throw new Error(`${argv.slice(0, 2).join(" ")} failed: ${output.trim()}`);
  }
}
