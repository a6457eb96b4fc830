import { mkdtemp } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EtcdMember, type StoredEntry, untilHealthy } from "./etcd-member.js";
import { FleetNode, type NodeBackend } from "./fleet-node.js";
import { type Host, TestNetwork } from "@coppice/test/harness/host/test-network.js";

const SIZE = 3;
const START_MS = 30_000;

export interface FaultedFleetOptions {
  readonly backend: NodeBackend;
  readonly leaseMs: number;
  readonly isUnfenced: boolean;
}

/** A sandbox in the fleet's record. */
export interface Recorded {
  readonly id: string;
  readonly node: string;
  readonly isLost: boolean;
}

/** Three servers and three members of etcd, each on a machine of its own; to be opened in an isolated process. */
export class FaultedFleet {
  readonly leaseMs: number;
  readonly network: TestNetwork;
  readonly nodes: readonly FleetNode[];
  readonly members: readonly EtcdMember[];

  static async open({ leaseMs, ...options }: FaultedFleetOptions): Promise<FaultedFleet> {
    const names = ["node", "etcd"].map((kind) =>
      Array.from({ length: SIZE }, (_, index) => `${kind}${index}`),
    );
    const { network, hosts } = await TestNetwork.open(names.flat());
    const [nodeHosts, etcdHosts] = [hosts.slice(0, SIZE), hosts.slice(SIZE)];
    const directory = await mkdtemp(join(tmpdir(), "etcd-"));
    const members = etcdHosts.map((host) => new EtcdMember(host, etcdHosts, directory));
    for (const member of members) member.start();
    if (!(await untilHealthy(members, START_MS))) throw new Error("etcd did not start");
    const endpoints = members.map(({ url }) => url);
    const install = (host: Host): Promise<FleetNode> =>
      FleetNode.install({ ...options, host, endpoints, leaseMs });
    const nodes = await Promise.all(nodeHosts.map(install));
    for (const node of nodes) await node.start();
    return new FaultedFleet({ leaseMs, network, nodes, members });
  }

  private constructor(parts: Pick<FaultedFleet, "leaseMs" | "network" | "nodes" | "members">) {
    this.leaseMs = parts.leaseMs;
    this.network = parts.network;
    this.nodes = parts.nodes;
    this.members = parts.members;
  }

  node(name: string): FleetNode {
    const found = this.nodes.find((node) => node.name === name);
    if (found === undefined) throw new Error(`there is no ${name}`);
    return found;
  }

  /** The member that leads; any one when none does at this moment. */
  async leader(): Promise<EtcdMember> {
    const leads = await Promise.all(this.members.map((member) => member.isLeader()));
    return this.members[Math.max(0, leads.indexOf(true))] as EtcdMember;
  }

  /** The fleet's record. @throws Error without a majority of etcd. */
  async records(): Promise<readonly Recorded[]> {
    const entries = await this.#entries("/coppice/sandboxes/");
    return entries.map(({ key, value }) => {
      const { node, lostAtMs } = JSON.parse(value) as { readonly node: string; readonly lostAtMs?: number };
      return { id: key, node, isLost: lostAtMs !== undefined };
    });
  }

  /** Ids of the sandboxes that quotas count. @throws as `records` */
  async countedIds(): Promise<readonly string[]> {
    const entries = await this.#entries("/coppice/tenants/");
    return entries.map(({ key }) => key.slice(key.lastIndexOf("/") + 1));
  }

  /** Names of the servers that are members now. @throws as `records` */
  async memberNames(): Promise<readonly string[]> {
    const entries = await this.#entries("/coppice/nodes/");
    return entries.filter(({ value }) => !value.includes("stoppedAtMs")).map(({ key }) => key);
  }

  async #entries(prefix: string): Promise<readonly StoredEntry[]> {
    for (const member of this.members) {
      const found = await member.entries(prefix).catch(() => undefined);
      if (found !== undefined) return found;
    }
    throw new Error("no member of etcd answers");
  }
}
