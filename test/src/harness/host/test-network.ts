import { execFile } from "node:child_process";
import { promisify } from "node:util";

const run = promisify(execFile);

/** A machine of the network: a network namespace. */
export interface Host {
  readonly name: string;
  readonly address: string;
  /** Words before a command line, for it to run there. */
  readonly enter: readonly string[];
}

const BRIDGE = "bridge0";
/** That of the documentation. */
const SUBNET = "10.0.0";

/** Machines on one switch. The calling process is on it as well, and no fault parts it from anyone. */
export class TestNetwork {
  /** For an isolated process: it removes nothing, and its names are the same in each. */
  static async open(
    names: readonly string[],
  ): Promise<{ readonly network: TestNetwork; readonly hosts: readonly Host[] }> {
    await ip("link", "add", BRIDGE, "type", "bridge");
    await ip("addr", "add", `${SUBNET}.254/24`, "dev", BRIDGE);
    await ip("link", "set", BRIDGE, "up");
    const hosts: Host[] = [];
    for (const [index, name] of names.entries()) {
      const address = `${SUBNET}.${1 + index}`;
      await ip("netns", "add", name);
      await ip("link", "add", `to-${name}`, "type", "veth", "peer", "name", "eth0", "netns", name);
      await ip("link", "set", `to-${name}`, "master", BRIDGE, "up");
      await ip("-n", name, "addr", "add", `${address}/24`, "dev", "eth0");
      await ip("-n", name, "link", "set", "eth0", "up");
      await ip("-n", name, "link", "set", "lo", "up");
      const host = { name, address, enter: ["nsenter", `--net=/run/netns/${name}`] };
      await nft(
        host,
        "add table inet faults; add chain inet faults in { type filter hook input priority 0; }",
      );
      hosts.push(host);
    }
    return { network: new TestNetwork(hosts), hosts };
  }

  readonly #hosts: readonly Host[];

  private constructor(hosts: readonly Host[]) {
    this.#hosts = hosts;
  }

  /** Drops all packets from one host to another; the other way they pass. */
  async drop(from: Host, to: Host): Promise<void> {
    await nft(to, `add rule inet faults in ip saddr ${from.address} drop`);
  }

  /** Drops what one host sends to a port of another: it gets no connection there; the other way they work. */
  async dropTo(from: Host, to: Host, port: number): Promise<void> {
    await nft(to, `add rule inet faults in ip saddr ${from.address} tcp dport ${port} drop`);
  }

  async heal(): Promise<void> {
    await Promise.all(this.#hosts.map((host) => nft(host, "flush chain inet faults in")));
  }
}

async function ip(...words: readonly string[]): Promise<void> {
  await run("ip", words);
}

async function nft({ enter }: Host, rules: string): Promise<void> {
  await run("nsenter", [...enter.slice(1), "nft", rules]);
}
