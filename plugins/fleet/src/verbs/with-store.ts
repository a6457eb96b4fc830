import { parseArgs } from "node:util";
import { type Clock, messageOf, SandboxError, type VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES } from "../membership/node-record.js";
import { CORDONS } from "../placement/cordons.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import { EtcdRefusal } from "../store/etcd/etcd-client.js";
import { type FleetStore, StoreUnavailable } from "../store/fleet-store.js";
import { openStore } from "../store/open-store.js";
import { REASONS } from "../reasons.js";

/**
 * Opens the fleet's store for a verb, whether or not a server runs here.
 * @throws SandboxError fleet_unavailable when the store cannot be reached or refuses, or what `use` throws.
 */
export async function withStore<T>(
  { config, clock }: Pick<Parameters<VerbAction<FleetConfig>["run"]>[0], "config" | "clock">,
  use: (store: FleetStore) => Promise<T>,
): Promise<T> {
  const store = opened(config, clock);
  try {
    return await use(store);
  } catch (error) {
    if (error instanceof EtcdRefusal)
      throw new SandboxError(REASONS.fleet_unavailable, `${error.message} (see fleet.etcd)`, {
        cause: error,
      });
    if (!(error instanceof StoreUnavailable)) throw error;
    const reason = error.cause === undefined ? "" : `: ${messageOf(error.cause)}`;
    throw new SandboxError(REASONS.fleet_unavailable, `${error.message}${reason}`, { cause: error });
  } finally {
    await store.close();
  }
}

/** @throws SandboxError fleet_unavailable that names a file which cannot be read, as a key that is root's. */
function opened(config: FleetConfig, clock: Clock): FleetStore {
  try {
    return openStore(config, clock);
  } catch (cause) {
    throw new SandboxError(REASONS.fleet_unavailable, messageOf(cause), { cause });
  }
}

/**
 * Without this check a mistyped name would look like a server that is cordoned, or drained.
 * @throws SandboxError request_invalid when the fleet knows no server of that name.
 */
export async function requireServer(store: FleetStore, server: string): Promise<void> {
  for (const kind of [NODES, CORDONS]) if ((await store.get(kind + server)) !== undefined) return;
  const { entries } = await store.list(SANDBOXES);
  if (entries.some((entry) => sandboxOf(entry)?.node === server)) return;
  throw new SandboxError(
    "request_invalid",
    `the fleet has no server '${server}'; coppice fleet status lists them`,
  );
}

/** The one server that a command line names. @throws SandboxError invalid_argument */
export function serverIn(args: readonly string[]): string {
  const { positionals } = parseArgs({ args: [...args], allowPositionals: true });
  const [name, ...others] = positionals;
  if (name === undefined || others.length > 0)
    throw new SandboxError(
      "request_invalid",
      "expected the name of one server; coppice fleet status lists them",
    );
  return name;
}
