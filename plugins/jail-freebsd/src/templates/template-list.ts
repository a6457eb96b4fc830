import { parseArgs } from "node:util";
import type { VerbAction } from "@coppice/core";
import type { BuiltTemplate } from "./built-templates.js";
import type { JailSettings } from "../jail-freebsd-config.js";
import { withTemplateWorkshop } from "./template-workshop.js";

const MEBIBYTE = 2 ** 20;

const HEADING = ["NAME", "STATE", "MiB", "GUID", "PACKAGES", "SNAPSHOT"];

export const templateList: VerbAction<JailSettings> = {
  usage: "[--json]",
  async run(context) {
    const options = { json: { type: "boolean", default: false } } as const;
    const { values } = parseArgs({ args: [...context.args], options });
    const built = await withTemplateWorkshop(context, async ({ templates }) => templates.list());
    const rows = built.map((each) => ({
      name: each.name,
      state: stateOf(each),
      usedMiB: Math.round(each.usedBytes / MEBIBYTE),
      guid: each.guid ?? "-",
      packages: each.packages ?? "-",
      snapshot: each.snapshot ?? "-",
    }));
    if (values.json) context.print(JSON.stringify(rows));
    else
      context.printTable(
        HEADING,
        rows.map((row) => Object.values(row).map(String)),
      );
    return 0;
  },
};

function stateOf({ isCurrent, isInUse, snapshot }: BuiltTemplate): string {
  if (snapshot === undefined) return "unfinished";
  if (isCurrent) return "current";
  return isInUse ? "in use" : "unused";
}
