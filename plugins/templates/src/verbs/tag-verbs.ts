import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { assignTags, parseTags, parseRemovedTags } from "../catalog/template-tags.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTenantsTemplate, nameOf } from "./find-template.js";

/** Gives a ready build more tags: the build that a tag leads to, or one by its id. */
export const templateTag: VerbAction<TemplatesConfig> = {
  usage: "<name[:tag or id of a build]> <tag>…",
  run({ args, clock, config, dataDir, print }) {
    const { positionals } = parseArgs({ args: [...args], allowPositionals: true, options: {} });
    const [reference, ...given] = positionals;
    if (reference === undefined || given.length === 0)
      throw new SandboxError("usage_invalid", "name one template and its new tags");
    const [name = "", tag = "default"] = reference.split(":");
    const wanted = parseTags(given);
    using store = new TemplatesStore(dataDir());
    const template = findTenantsTemplate(store, name);
    const limits = { maxTags: config.maxTags, nowMs: clock.now() };
    const build = assignTags(store, { template, name, tag, tags: wanted }, limits);
    for (const one of wanted) print(`${nameOf(template)}:${one} is build ${build}`);
    return 0;
  },
};

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
    store.tags.remove({ templateId: template.id, name: unwanted });
    for (const one of unwanted) print(`${nameOf(template)}:${one} is removed`);
    return 0;
  },
};
