import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES, nodeOf } from "../membership/node-record.js";
import { setCordon } from "../placement/cordons.js";
import { type Moved, moveAnswer } from "../placement/moves.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import { connectionsBy, HttpPeer } from "../routing/http-peer.js";
import type { FleetStore } from "../store/fleet-store.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { requireServer, serverIn, withStore } from "./with-store.js";
import { REASONS } from "../reasons.js";

const POLL_MS = 1000;

/**
 * Gives a server no new sandboxes, and waits until those that it has are ended by their owners or their time. With `--move`
 * it is asked to move each to another server first; those that it cannot move go on there, and the verb fails.
 */
export const fleetDrain: VerbAction<FleetConfig> = {
  usage: "<server> [--move]",
  async run(context) {
    const { config, print } = context;
    const options = { move: { type: "boolean", default: false } } as const;
    const { values, positionals } = parseArgs({ args: [...context.args], allowPositionals: true, options });
    const server = serverIn(positionals);
    return withStore(context, async (store) => {
      await requireServer(store, server);
      await setCordon(store, server, true);
      const isLeft = values.move && (await moveAll(store, server, { config, print }));
      if (isLeft) return 1;
      let told: number | undefined;
      for (;;) {
        const left = (await sandboxesOf(store, server)).length;
        if (left === 0) break;
        if (left !== told) print(`${left} sandboxes are left on '${server}'`);
        told = left;
        await sleep(POLL_MS);
      }
      print(`'${server}' has no sandboxes and gets no new ones`);
      return 0;
    });
  },
};

/** @returns true when some could not be moved, and go on. */
async function moveAll(
  store: FleetStore,
  server: string,
  { config, print }: { readonly config: FleetConfig; readonly print: (line: string) => void },
): Promise<boolean> {
  const entry = await store.get(NODES + server);
  const secrets = new FleetSecrets(config);
  const node = entry && nodeOf(entry, secrets);
  if (node === undefined || node.stoppedAtMs !== undefined)
    throw new SandboxError(
      REASONS.fleet_unavailable,
      `server '${server}' does not run, so nothing can be moved`,
    );
  const { secret } = node;
  if (secret === undefined)
    throw new SandboxError(
      REASONS.fleet_unavailable,
      `server '${server}' has another secret: check fleet.secret`,
    );
  const { connectTimeout: connectMs } = config;
  using connections = connectionsBy(config);
  const options = { secrets, connectMs, connections, onFailure: () => {} };
  const peer = new HttpPeer({ ...options, node: server, server: { ...node, secret } });
  const asked = new Set<string>();
  const refused = new Set<string>();
  for (;;) {
    const all = await sandboxesOf(store, server);
    const next = all.find((id) => !asked.has(id));
    if (next === undefined) return all.some((id) => refused.has(id));
    const { signal } = new AbortController();
    const moved: Moved = moveAnswer.parse(await peer.ask("/moves", { id: next }, signal));
    if ("id" in moved) print(`${next} is ${moved.id} on '${moved.server}' now`);
    else {
      print(`${next} stays on '${server}': ${moved.refusal}`);
      refused.add(next);
    }
    asked.add(next);
  }
}

async function sandboxesOf(store: FleetStore, server: string): Promise<readonly string[]> {
  const { entries } = await store.list(SANDBOXES);
  return entries.flatMap((entry) => {
    const found = sandboxOf(entry);
    const isThere = found?.node === server && found.lostAtMs === undefined;
    return isThere ? [entry.key.slice(SANDBOXES.length)] : [];
  });
}
