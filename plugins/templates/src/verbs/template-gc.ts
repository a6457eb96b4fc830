import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import type { TemplatesConfig } from "../templates-config.js";
import { withStoppedImages } from "./stopped-images.js";

/** Removes the images that nothing needs any more, as a running server does by itself. */
export const templateGc: VerbAction<TemplatesConfig> = {
  usage: "",
  async run(context) {
    const { args, clock, config, print } = context;
    parseArgs({ args: [...args], options: {} });
    return withStoppedImages(context, async ({ store, keeper }) => {
      store.images.forgetLayersBefore(clock.now() - config.layersKept);
      const { unneeded } = await keeper.check();
      await keeper.remove(unneeded);
      const left = new Set((await keeper.check()).unneeded.map(({ id }) => id));
      for (const { id, backend } of unneeded)
        print(`${left.has(id) ? "not removed" : "removed"} ${id} of ${backend}`);
      return left.size === 0 ? 0 : 1;
    });
  },
};
