import type { NodeRecord } from "../membership/node-record.js";
import type { FleetStore } from "../store/fleet-store.js";
import type { KeyView } from "../store/key-view.js";

/** Keys of servers that get no new sandboxes, by name. */
export const CORDONS = "cordons/";

export async function setCordon(store: FleetStore, node: string, isCordoned: boolean): Promise<void> {
  const key = CORDONS + node;
  await store.commit([], [isCordoned ? { put: key, value: "true" } : { delete: key }]);
}

export interface FleetServers {
  /** Name of this server. */
  readonly node: string;
  readonly nodes: Pick<KeyView<NodeRecord>, "entries">;
  readonly cordons: Pick<KeyView<true>, "get">;
}

/** The other servers that get new sandboxes, volumes and templates. */
export function openServers({
  node,
  nodes,
  cordons,
}: FleetServers): readonly (readonly [string, NodeRecord])[] {
  return [...nodes.entries()].filter(
    ([name, { secret, stoppedAtMs }]) =>
      name !== node && secret !== undefined && stoppedAtMs === undefined && cordons.get(name) === undefined,
  );
}
