import { SandboxError, type VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { NODES, nodeOf } from "../membership/node-record.js";
import { CORDONS } from "../placement/cordons.js";
import { requireServer, serverIn, withStore } from "./with-store.js";

/** Gives up a server that will not be back: its sandboxes are lost at once, and its name is free. */
export const fleetRemove: VerbAction<FleetConfig> = {
  usage: "<server>",
  async run(context) {
    const server = serverIn(context.args);
    return withStore(context, async (store) => {
      await requireServer(store, server);
      const key = NODES + server;
      const found = await store.get(key);
      if (found !== undefined && nodeOf(found)?.stoppedAtMs === undefined)
        throw new SandboxError("request_invalid", `'${server}' is a member: stop it first`);
      const check = { key, modRevision: found?.modRevision ?? 0 };
      const revision = await store.commit([check], [{ delete: key }, { delete: CORDONS + server }]);
      if (revision === undefined) throw new SandboxError("fleet_unavailable", `'${server}' is back`);
      context.print(`'${server}' is no part of the fleet any more`);
      return 0;
    });
  },
};
