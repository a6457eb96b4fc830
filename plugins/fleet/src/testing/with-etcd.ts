import { fakeClock } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import type { FleetStore } from "../store/fleet-store.js";
import { openStore } from "../store/open-store.js";

/** Uses the store of a fleet as none of its servers. @param etcd as in the configuration. */
export async function withEtcd(etcd: object, use: (store: FleetStore) => Promise<void>): Promise<void> {
  const config = fleetConfig.parse({ address: "http://127.0.0.1:1", secret: "5eed".repeat(16), etcd });
  const store = openStore(config, fakeClock());
  try {
    await use(store);
  } finally {
    await store.close();
  }
}
