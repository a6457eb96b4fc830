import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES, nodeOf } from "../membership/node-record.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import { CORDONS } from "../placement/cordons.js";
import type { FleetStore } from "../store/fleet-store.js";
import { withStore } from "./with-store.js";

const HEADING = ["SERVER", "STATE", "SANDBOXES", "LOST", "VERSION", "ADDRESS", "SINCE"];

interface Status {
  readonly server: string;
  readonly state: "member" | "cordoned" | "away" | "gone";
  sandboxes: number;
  lost: number;
  readonly version: string | null;
  readonly address: string | null;
  readonly since: string | null;
}

/** Prints the servers of the fleet, and those that left sandboxes behind. Exits with 1 when one is gone. */
export const fleetStatus: VerbAction<FleetConfig> = {
  usage: "[--json]",
  async run(context) {
    const { args, print, printTable } = context;
    const { values } = parseArgs({ args: [...args], options: { json: { type: "boolean", default: false } } });
    const rows = await withStore(context, readStatus);
    if (values.json) print(JSON.stringify(rows));
    else
      printTable(
        HEADING,
        rows.map((row) => Object.values(row).map((value) => String(value ?? "-"))),
      );
    return rows.some(({ state }) => state === "gone") ? 1 : 0;
  },
};

async function readStatus(store: FleetStore): Promise<readonly Status[]> {
  const found = new Map<string, Status>();
  const cordoned = new Set((await store.list(CORDONS)).entries.map(({ key }) => key.slice(CORDONS.length)));
  for (const entry of (await store.list(NODES)).entries) {
    const server = entry.key.slice(NODES.length);
    const node = nodeOf(entry);
    const state = cordoned.has(server) ? "cordoned" : "member";
    found.set(server, {
      ...unknownServer(server),
      state: node?.stoppedAtMs === undefined ? state : "away",
      version: node?.version ?? null,
      address: node?.address ?? null,
      since: node === undefined ? null : new Date(node.stoppedAtMs ?? node.joinedAtMs).toISOString(),
    });
  }
  for (const entry of (await store.list(SANDBOXES)).entries) {
    const sandbox = sandboxOf(entry);
    if (sandbox === undefined) continue;
    const server = found.get(sandbox.node) ?? unknownServer(sandbox.node);
    server[sandbox.lostAtMs === undefined ? "sandboxes" : "lost"] += 1;
    found.set(sandbox.node, server);
  }
  return [...found.values()];
}

function unknownServer(server: string): Status {
  return { server, state: "gone", sandboxes: 0, lost: 0, version: null, address: null, since: null };
}
