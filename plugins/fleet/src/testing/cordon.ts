import { fakeClock } from "@coppice/core/testing";
import { fleetConfig } from "../fleet-config.js";
import { setCordon } from "../placement/cordons.js";
import { openStore } from "../store/open-store.js";

/** Has a server get no sandboxes from its start on. @param etcd as in the configuration. */
export async function cordon(etcd: object, node: string): Promise<void> {
  const config = fleetConfig.parse({ address: "http://127.0.0.1:1", secret: "5eed".repeat(16), etcd });
  const store = openStore(config, fakeClock());
  try {
    await setCordon(store, node, true);
  } finally {
    await store.close();
  }
}
