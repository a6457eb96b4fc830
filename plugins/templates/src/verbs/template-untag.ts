import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { parseRemovedTags } from "../catalog/template-tags.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTenantsTemplate, nameOf } from "./find-template.js";

/** Takes tags from a template. Its builds stay. */
export const templateUntag: VerbAction<TemplatesConfig> = {
  usage: "<name> <tag>…",
  run({ args, dataDir, print }) {
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true, options: {} });
    const [name, ...given] = positionals;
    if (name === undefined || given.length === 0)
      throw new SandboxError("usage_invalid", "name one template and tags of it");
    const unwanted = parseRemovedTags(given);
    using store = new TemplatesStore(dataDir());
    const template = findTenantsTemplate(store, name);
    store.tags.remove(template.id, unwanted);
    for (const one of unwanted) print(`${nameOf(template)}:${one} is removed`);
    return 0;
  },
};
