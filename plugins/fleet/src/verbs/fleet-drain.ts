import { setTimeout as sleep } from "node:timers/promises";
import type { VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { setCordon } from "../placement/cordons.js";
import { SANDBOXES, sandboxOf } from "../records/fleet-sandbox.js";
import type { FleetStore } from "../store/fleet-store.js";
import { requireServer, serverIn, withStore } from "./with-store.js";

const POLL_MS = 1000;

/**
 * Gives a server no new sandboxes, and waits until those that it has are ended by their owners or their time. Nothing
 * is moved or ended by it.
 */
export const fleetDrain: VerbAction<FleetConfig> = {
  usage: "<server>",
  async run(context) {
    const server = serverIn(context.args);
    return withStore(context, async (store) => {
      await requireServer(store, server);
      await setCordon(store, server, true);
      let told: number | undefined;
      for (;;) {
        const left = await sandboxesOf(store, server);
        if (left === 0) break;
        if (left !== told) context.print(`${left} sandboxes are left on '${server}'`);
        told = left;
        await sleep(POLL_MS);
      }
      context.print(`'${server}' has no sandboxes and gets no new ones`);
      return 0;
    });
  },
};

async function sandboxesOf(store: FleetStore, server: string): Promise<number> {
  const { entries } = await store.list(SANDBOXES);
  return entries.map(sandboxOf).filter((found) => found?.node === server && found.lostAtMs === undefined)
    .length;
}
