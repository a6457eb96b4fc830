import { join } from "node:path";
import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { buildTemplate } from "./build-template.js";
import type { JailSettings } from "../jail-freebsd-config.js";
import { readTemplateFile } from "./template-file.js";
import { withTemplateWorkshop } from "./template-workshop.js";

/** Builds the template of a file unless it exists, and makes it current for new sandboxes. */
export const templateBuild: VerbAction<JailSettings> = {
  usage: "<template.yaml>",
  async run(context) {
    const { args, config, print } = context;
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true, options: {} });
    const [file, ...others] = positionals;
    if (file === undefined || others.length > 0) {
      throw new SandboxError("usage_invalid", "name the file of one template");
    }
    const recipe = await readTemplateFile(file);
    const isNew = await withTemplateWorkshop(context, async ({ host, templates }) =>
      buildTemplate(recipe, {
        host,
        templates,
        directory: join(config.directory, "templates"),
        agentInside: config.agentInside,
        timeoutMs: config.templateCommandTimeout,
        onStep: print,
      }),
    );
    print(`${recipe.name} ${recipe.digest}${isNew ? "" : ", which was built before"}`);
    return 0;
  },
};
