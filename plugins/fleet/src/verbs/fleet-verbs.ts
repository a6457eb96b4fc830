import { parseArgs } from "node:util";
import { type VerbAction, SandboxError } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES, nodeOf } from "../membership/node-record.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import { CORDONS, setCordon } from "../placement/cordons.js";
import type { FleetStore } from "../store/fleet-store.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { withStore, requireServer, serverIn } from "./with-store.js";
import { REASONS } from "../reasons.js";

const HEADING = ["SERVER", "STATE", "SANDBOXES", "LOST", "VERSION", "ADDRESS", "SINCE"];

interface Status {
  readonly server: string;
  readonly state: "member" | "cordoned" | "away" | "gone" | "unproven";
  sandboxes: number;
  lost: number;
  readonly version: string | null;
  readonly address: string | null;
  readonly since: string | null;
}

/** Prints the servers of the fleet, and those that left sandboxes behind. Exits with 1 when one is gone, or is not proven to be one of them. */
export const fleetStatus: VerbAction<FleetConfig> = {
  usage: "[--json]",
  async run(context) {
    const { args, print, printTable } = context;
    const { values } = parseArgs({ args: [...args], options: { json: { type: "boolean", default: false } } });
    const rows = await withStore(context, (store) => readStatus(store, new FleetSecrets(context.config)));
    if (values.json) print(JSON.stringify(rows));
    else
      printTable(
        HEADING,
        rows.map((row) => Object.values(row).map((value) => String(value ?? "-"))),
      );
    return rows.some(({ state }) => state === "gone" || state === "unproven") ? 1 : 0;
  },
};

async function readStatus(store: FleetStore, secrets: FleetSecrets): Promise<readonly Status[]> {
  const found = new Map<string, Status>();
  const cordoned = new Set((await store.list(CORDONS)).entries.map(({ key }) => key.slice(CORDONS.length)));
  for (const entry of (await store.list(NODES)).entries) {
    const server = entry.key.slice(NODES.length);
    const node = nodeOf(entry, secrets);
    const state = cordoned.has(server) ? "cordoned" : "member";
    found.set(server, {
      ...unknownServer(server),
      state: node?.secret === undefined ? "unproven" : node.stoppedAtMs === undefined ? state : "away",
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

/** Gives a server no new sandboxes. Those that it has go on. */
export const fleetCordon: VerbAction<FleetConfig> = {
  usage: "<server>",
  run: (context) => setTo(true, context),
};

/** Gives it new sandboxes again. */
export const fleetUncordon: VerbAction<FleetConfig> = {
  usage: "<server>",
  run: (context) => setTo(false, context),
};

async function setTo(
  isCordoned: boolean,
  context: Parameters<VerbAction<FleetConfig>["run"]>[0],
): Promise<number> {
  const server = serverIn(context.args);
  await withStore(context, async (store) => {
    await requireServer(store, server);
    await setCordon(store, server, isCordoned);
  });
  context.print(isCordoned ? `'${server}' gets no new sandboxes` : `'${server}' gets new sandboxes again`);
  return 0;
}

/** Gives up a server that will not be back: its sandboxes are lost at once, and its name is free. */
export const fleetRemove: VerbAction<FleetConfig> = {
  usage: "<server>",
  async run(context) {
    const server = serverIn(context.args);
    return withStore(context, async (store) => {
      await requireServer(store, server);
      const key = NODES + server;
      const found = await store.get(key);
      const node = found && nodeOf(found, new FleetSecrets(context.config));
      // What nobody of the fleet wrote has no lease: it would stay for ever.
      const isMember = node?.stoppedAtMs === undefined && node?.secret !== undefined;
      if (isMember) throw new SandboxError("request_invalid", `'${server}' is a member: stop it first`);
      const check = { key, modRevision: found?.modRevision ?? 0 };
      const revision = await store.commit([check], [{ delete: key }, { delete: CORDONS + server }]);
      if (revision === undefined) throw new SandboxError(REASONS.fleet_unavailable, `'${server}' is back`);
      context.print(`'${server}' is no part of the fleet any more`);
      return 0;
    });
  },
};
