import type { FleetStore } from "../store/fleet-store.js";

/** Keys of servers that get no new sandboxes, by name. */
export const CORDONS = "cordons/";

export async function setCordon(store: FleetStore, node: string, isCordoned: boolean): Promise<void> {
  const key = CORDONS + node;
  await store.commit([], [isCordoned ? { put: key, value: "true" } : { delete: key }]);
}
