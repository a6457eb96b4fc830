import type { VerbAction } from "@coppice/core";
import type { FleetConfig } from "../fleet-config.js";
import { setCordon } from "../placement/cordons.js";
import { requireServer, serverIn, withStore } from "./with-store.js";

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
