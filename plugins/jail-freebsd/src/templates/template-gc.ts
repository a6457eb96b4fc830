import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import type { JailSettings } from "../jail-freebsd-config.js";
import { withTemplateWorkshop } from "./template-workshop.js";

/** Removes built templates, finished or not, that have no clones, are not current, and are named in no setting. */
export const templateGc: VerbAction<JailSettings> = {
  usage: "",
  async run(context) {
    parseArgs({ args: [...context.args], options: {} });
    const named = new Set(Object.values(context.config.templates).map(({ snapshot }) => snapshot));
    await withTemplateWorkshop(context, async ({ templates }) => {
      const unused = (await templates.list()).filter(
        ({ isCurrent, isInUse, snapshot }) =>
          !isCurrent && !isInUse && (snapshot === undefined || !named.has(snapshot)),
      );
      for (const { name, dataset } of unused) {
        const isGone = await templates.remove(dataset);
        context.print(`${isGone ? "removed" : "kept, because it is in use:"} ${name} ${dataset}`);
      }
    });
    return 0;
  },
};
