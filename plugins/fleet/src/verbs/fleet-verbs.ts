import { setTimeout as sleep } from "node:timers/promises";
import { type VerbAction, type Clock, messageOf, SandboxError } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES, nodeOf, CORDONS, setCordon } from "../membership/node-record.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import { type FleetStore, StoreUnavailable } from "../store/fleet-store.js";
import { FleetSecrets } from "../trust/fleet-secrets.js";
import { unavailable } from "../reasons.js";
import { EtcdRefusal } from "../store/etcd/etcd-client.js";
import { openStore } from "../store/open-store.js";
import { type Moved, moveAnswer } from "../placement/moves.js";
import { connectionsBy, HttpPeer } from "../routing/http-peer.js";

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
export const fleetStatus: VerbAction<FleetConfig> = (command, context) =>
  command
    .description("lists the servers of the fleet; exit code 1 when one is gone or not proven")
    .option("--json", "prints JSON")
    .addHelpText("after", "\nExample:\n  coppice fleet status fleet.yaml")
    .action(async ({ json }) => {
      const { print, printTable, exit } = context;
      const rows = await withStore(context, (store) => readStatus(store, new FleetSecrets(context.config)));
      if (json) print(JSON.stringify(rows));
      else
        printTable(
          HEADING,
          rows.map((row) => Object.values(row).map((value) => String(value ?? "-"))),
        );
      if (rows.some(({ state }) => state === "gone" || state === "unproven")) exit(1);
    });

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
export const fleetCordon: VerbAction<FleetConfig> = (command, context) =>
  onServer(command, "gives a server no new sandboxes").action((server) => setTo(true, server, context));

export const fleetUncordon: VerbAction<FleetConfig> = (command, context) =>
  onServer(command, "gives a server new sandboxes again").action((server) => setTo(false, server, context));

function onServer(command: Parameters<VerbAction<FleetConfig>>[0], description: string) {
  return command
    .description(description)
    .argument("<server>", "as status has it")
    .addHelpText("after", `\nExample:\n  coppice fleet ${command.name()} fleet.yaml worker-1`);
}

async function setTo(
  isCordoned: boolean,
  server: string,
  context: Parameters<VerbAction<FleetConfig>>[1],
): Promise<void> {
  await withStore(context, async (store) => {
    await requireServer(store, server);
    await setCordon(store, server, isCordoned);
  });
  context.print(isCordoned ? `'${server}' gets no new sandboxes` : `'${server}' gets new sandboxes again`);
}

/** Gives up a server that will not be back: its sandboxes are lost at once, and its name is free. */
export const fleetRemove: VerbAction<FleetConfig> = (command, context) =>
  onServer(command, "gives up a server that will not be back").action((server) =>
    withStore(context, async (store) => {
      await requireServer(store, server);
      const key = NODES + server;
      const found = await store.get(key);
      const node = found && nodeOf(found, new FleetSecrets(context.config));
      // What nobody of the fleet wrote has no lease: it would stay for ever.
      const isMember = node?.stoppedAtMs === undefined && node?.secret !== undefined;
      if (isMember) throw new SandboxError("request_invalid", `'${server}' is a member: stop it first`);
      const check = { key, modRevision: found?.modRevision ?? 0 };
      const revision = await store.commit([check], [{ delete: key }, { delete: CORDONS + server }]);
      if (revision === undefined) throw unavailable(`'${server}' is back`);
      context.print(`'${server}' is no part of the fleet any more`);
    }),
  );

/**
 * Opens the fleet's store for a verb, whether or not a server runs here.
 * @throws SandboxError fleet_unavailable when the store cannot be reached or refuses, or what `use` throws.
 */
export async function withStore<T>(
  { config, clock }: Pick<Parameters<VerbAction<FleetConfig>>[1], "config" | "clock">,
  use: (store: FleetStore) => Promise<T>,
): Promise<T> {
  const store = opened(config, clock);
  try {
    return await use(store);
  } catch (error) {
    if (error instanceof EtcdRefusal) throw unavailable(`${error.message} (see fleet.etcd)`, error);
    if (!(error instanceof StoreUnavailable)) throw error;
    const reason = error.cause === undefined ? "" : `: ${messageOf(error.cause)}`;
    throw unavailable(`${error.message}${reason}`, error);
  } finally {
    await store.close();
  }
}

/** @throws SandboxError fleet_unavailable that names a file which cannot be read, as a key that is root's. */
function opened(config: FleetConfig, clock: Clock): FleetStore {
  try {
    return openStore(config, clock);
  } catch (cause) {
    throw unavailable(messageOf(cause), cause);
  }
}

/**
 * Without this check a mistyped name would look like a server that is cordoned, or drained.
 * @throws SandboxError request_invalid when the fleet knows no server of that name.
 */
async function requireServer(store: FleetStore, server: string): Promise<void> {
  for (const kind of [NODES, CORDONS]) if ((await store.get(kind + server)) !== undefined) return;
  const { entries } = await store.list(SANDBOXES);
  if (entries.some((entry) => sandboxOf(entry)?.node === server)) return;
  throw new SandboxError(
    "request_invalid",
    `the fleet has no server '${server}'; coppice fleet status lists them`,
  );
}

const POLL_MS = 1000;

/**
 * Gives a server no new sandboxes, and waits until those that it has are ended by their owners or their time. With `--move`
 * it is asked to move each to another server first; those that it cannot move go on there, and the verb fails.
 */
export const fleetDrain: VerbAction<FleetConfig> = (command, context) =>
  onServer(command, "gives a server no new sandboxes, and waits until it has none")
    .option("--move", "moves them to other servers; exit code 1 when one cannot be moved")
    .action(async (server, { move }) => {
      const { config, print, exit } = context;
      await withStore(context, async (store) => {
        await requireServer(store, server);
        await setCordon(store, server, true);
        if (move && (await moveAll(store, server, { config, print }))) return exit(1);
        let told: number | undefined;
        for (;;) {
          const left = (await sandboxesOf(store, server)).length;
          if (left === 0) break;
          if (left !== told) print(`${left} sandboxes are left on '${server}'`);
          told = left;
          await sleep(POLL_MS);
        }
        print(`'${server}' has no sandboxes and gets no new ones`);
      });
    });

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
    throw unavailable(`server '${server}' does not run, so nothing can be moved`);
  const { secret } = node;
  if (secret === undefined) throw unavailable(`server '${server}' has another secret: check fleet.secret`);
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
