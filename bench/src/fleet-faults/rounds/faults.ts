import { setTimeout as pause } from "node:timers/promises";
import type { SeededRandom } from "@coppice/core/testing";
import type { EtcdMember } from "../world/etcd-member.js";
import type { FaultedFleet } from "../world/faulted-fleet.js";
import { FLEET_PORT, type FleetNode } from "../world/fleet-node.js";

/** Where a fault happens. */
export interface Scene {
  readonly fleet: FaultedFleet;
  readonly random: SeededRandom;
  /** A server: the victim, where one is. */
  readonly node: FleetNode;
  /** The member that leads etcd. */
  readonly leader: EtcdMember;
  /**
   * Waits until the fleet has given up the victim's sandboxes, which it has to within its lease and two seconds from now.
   * Nothing of etcd may be out of order.
   */
  readonly untilGivenUp: () => Promise<void>;
}

export interface Fault {
  /** Happens, and is over when it resolves: nothing is left of it but its consequences. */
  run(scene: Scene): Promise<void>;
  /** True: the victim's sandboxes may be lost by it, or end with their server. */
  readonly costsSandboxes: boolean;
}

const CLOCK_JUMPS_MS = [-3_600_000, -30_000, -1000, 1000, 30_000, 3_600_000] as const;

/** All faults, by the words that name them in reports. */
export const FAULTS: Readonly<Record<string, Fault>> = {
  "a server is killed, and starts again at once": costs(async ({ node, random }) => {
    await node.kill();
    await pause(random.below(300));
    await node.start();
  }),
  "a server is killed, and starts again after its loss was told": costs(async ({ node, untilGivenUp }) => {
    await node.kill();
    await untilGivenUp();
    await node.start();
  }),
  "etcd's leader is killed": free(async ({ leader, random }) => {
    await leader.kill();
    await pause(500 + random.below(2000));
    leader.start();
  }),
  "a server and etcd's leader are killed": costs(async ({ node, leader, random }) => {
    await Promise.all([node.kill(), leader.kill()]);
    await pause(random.below(3000));
    leader.start();
    await node.start();
  }),
  "a server stands still for less than its lease": free(async ({ fleet, node, random }) => {
    node.signal("SIGSTOP");
    await pause(random.below(fleet.leaseMs * 0.5));
    node.signal("SIGCONT");
  }),
  "a server stands still until its loss was told": costs(async ({ node, random, untilGivenUp }) => {
    node.signal("SIGSTOP");
    await untilGivenUp();
    // Clients go on asking it: what they send waits in its sockets.
    await pause(random.below(500));
    node.signal("SIGCONT");
  }),
  "a server stands still for about its lease": costs(async ({ fleet, node, random }) => {
    node.signal("SIGSTOP");
    await pause(fleet.leaseMs - 500 + random.below(1500));
    node.signal("SIGCONT");
  }),
  "a server and etcd are parted until its loss was told": costs(async ({ fleet, node, untilGivenUp }) => {
    for (const { host } of fleet.members) await part(fleet, node, host);
    await untilGivenUp();
  }),
  "a server and etcd are parted for about its lease": costs(async ({ fleet, node, random }) => {
    for (const { host } of fleet.members) await part(fleet, node, host);
    await pause(fleet.leaseMs - 500 + random.below(1500));
  }),
  "etcd hears a server, which hears nothing of etcd": costs(async ({ fleet, node, random }) => {
    for (const { host } of fleet.members) await fleet.network.drop(host, node.host);
    await pause(500 + random.below(2 * fleet.leaseMs));
  }),
  "a server hears etcd, which hears nothing of it": costs(async ({ fleet, node, random }) => {
    for (const { host } of fleet.members) await fleet.network.drop(node.host, host);
    await pause(500 + random.below(2 * fleet.leaseMs));
  }),
  "a server cannot reach etcd's leader": free(async ({ fleet, node, leader, random }) => {
    await part(fleet, node, leader.host);
    await pause(500 + random.below(2 * fleet.leaseMs));
  }),
  "two servers are parted": free(async ({ fleet, node, random }) => {
    await part(fleet, node, another(fleet, node, random).host);
    await pause(500 + random.below(2 * fleet.leaseMs));
  }),
  "a server cannot reach another one, which reaches it": free(async ({ fleet, node, random }) => {
    await fleet.network.dropTo(node.host, another(fleet, node, random).host, FLEET_PORT);
    await pause(500 + random.below(2 * fleet.leaseMs));
  }),
  "etcd's leader is parted from the other members": free(async ({ fleet, leader, random }) => {
    for (const { host } of fleet.members) if (host !== leader.host) await part(fleet, leader, host);
    await pause(500 + random.below(2 * fleet.leaseMs));
  }),
  "a server and etcd's leader are parted from all others": costs(async ({ fleet, node, leader, random }) => {
    const others = [...fleet.nodes, ...fleet.members].filter((one) => one !== node && one !== leader);
    for (const other of others) {
      await part(fleet, node, other.host);
      await part(fleet, leader, other.host);
    }
    await pause(fleet.leaseMs - 500 + random.below(fleet.leaseMs));
  }),
  "etcd has no majority for a while": free(async ({ fleet, leader, random }) => {
    const other = fleet.members.find((member) => member !== leader) as EtcdMember;
    await Promise.all([leader.kill(), other.kill()]);
    await pause(500 + random.below(2 * fleet.leaseMs));
    leader.start();
    other.start();
  }),
  // With this a flush of a log takes as long as on an overloaded network disk.
  "the disks of etcd are slow": free(async ({ fleet, random }) => {
    const delayMs = 50 + random.below(350);
    const slow = fleet.members.slice(0, 1 + random.below(fleet.members.length));
    for (const member of slow) await member.hasSlowDisk(delayMs);
    await pause(1000 + random.below(2000));
    for (const member of slow) await member.hasFastDisk();
  }),
  "etcd's leader stands still now and then": free(async ({ leader, random }) => {
    for (let burst = 0; burst < 4; burst += 1) {
      leader.signal("SIGSTOP");
      await pause(random.below(600));
      leader.signal("SIGCONT");
      await pause(random.below(300));
    }
  }),
  "a server's clock jumps": free(async ({ node, random }) => {
    await node.shiftClock(random.of(CLOCK_JUMPS_MS));
    await pause(500 + random.below(1500));
    await node.shiftClock(0);
  }),
};

function costs(run: Fault["run"]): Fault {
  return { run, costsSandboxes: true };
}

function free(run: Fault["run"]): Fault {
  return { run, costsSandboxes: false };
}

async function part(
  { network }: FaultedFleet,
  { host }: FleetNode | EtcdMember,
  other: FleetNode["host"],
): Promise<void> {
  await network.drop(host, other);
  await network.drop(other, host);
}

function another({ nodes }: FaultedFleet, node: FleetNode, random: SeededRandom): FleetNode {
  const others = nodes.filter((one) => one !== node);
  return others[random.below(others.length)] as FleetNode;
}
