import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES, nodeOf } from "../membership/node-record.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import { openStore } from "../store/open-store.js";

const HEADING = ["SERVER", "STATE", "SANDBOXES", "LOST", "VERSION", "ADDRESS", "SINCE"];

interface Status {
  readonly server: string;
  readonly state: "member" | "away" | "gone";
  sandboxes: number;
  lost: number;
  readonly version: string | null;
  readonly address: string | null;
  readonly since: string | null;
}

/** Prints the servers of the fleet, and those that left sandboxes behind. Exits with 1 when one is gone. */
export const fleetStatus: VerbAction<FleetConfig> = {
  usage: "[--json]",
  async run({ config, args, clock, print, printTable }) {
    const { values } = parseArgs({ args: [...args], options: { json: { type: "boolean", default: false } } });
    const store = openStore(config, clock);
    try {
      const found = new Map<string, Status>();
      for (const entry of (await store.list(NODES)).entries) {
        const server = entry.key.slice(NODES.length);
        const node = nodeOf(entry);
        const state = node?.stoppedAtMs === undefined ? "member" : "away";
        found.set(server, {
          ...unknownServer(server),
          state,
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
      const rows = [...found.values()];
      if (values.json) print(JSON.stringify(rows));
      else
        printTable(
          HEADING,
          rows.map((row) => Object.values(row).map((value) => String(value ?? "-"))),
        );
      return rows.some(({ state }) => state === "gone") ? 1 : 0;
    } finally {
      await store.close();
    }
  },
};

function unknownServer(server: string): Status {
  return { server, state: "gone", sandboxes: 0, lost: 0, version: null, address: null, since: null };
}
