import { readdir } from "node:fs/promises";
import type { FaultedFleet } from "../world/faulted-fleet.js";
import { Client } from "./client.js";
import { disagreements } from "./checks.js";
import type { Load } from "./load.js";

/** Kills all sandboxes, stops all servers, and looks for what is left. @returns it, as text */
export async function leftOver(fleet: FaultedFleet, load: Load): Promise<readonly string[]> {
  const client = new Client(fleet.nodes[0]?.url ?? "");
  for (const { id, isLost } of await fleet.records()) if (!isLost) await client.kill(id);
  const faults = [...(await disagreements(fleet, load))];
  for (const node of fleet.nodes) await node.stop();
  for (const { id, node, isLost } of await fleet.records())
    if (!isLost) faults.push(`a record of ${id}, which is no more, says ${node}`);
  for (const name of await fleet.memberNames()) faults.push(`${name} has stopped, and is a member`);
  for (const node of fleet.nodes)
    for (const id of await node.sandboxesOnDisk()) faults.push(`${node.name} has left the files of ${id}`);
  // Bash, this process, the members of etcd, and what looks.
  const allowed = 2 + fleet.members.length;
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  if (pids.length > allowed) faults.push(`${pids.length} processes are left, not ${allowed}`);
  return faults;
}
