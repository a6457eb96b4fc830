import { parseArgs } from "node:util";
import { SandboxError, type VerbAction } from "@coppice/core";
import { assignTags, parseRemovedTags, parseTags } from "../catalog/build-requests.js";
import { TemplatesStore } from "../store/templates-store.js";
import type { TemplatesConfig } from "../templates-config.js";
import { findTemplate, findTenantsTemplate, nameOf } from "./find-template.js";
import { SERVER } from "../model/template-record.js";
import { REASONS } from "../reasons.js";

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

/**
 * Removes a template with its builds, tags and logs. Its sandboxes and snapshots go on: backends keep the images that
 * they stand on.
 */
export const templateRemove: VerbAction<TemplatesConfig> = {
  usage: "<name or id> [--force]",
  run({ args, dataDir, print }) {
    const { positionals, values } = parseArgs({
      args: [...args],
      allowPositionals: true,
      options: { force: { type: "boolean", default: false } },
    });
    const [name, ...others] = positionals;
    if (name === undefined || others.length > 0) throw new SandboxError("usage_invalid", "name one template");
    using store = new TemplatesStore(dataDir());
    const removed = store.atOnce(() => {
      const template = findTemplate(store, name);
      if (template.owner === SERVER && !values.force) {
        const text = `template '${name}' is one of this server's configuration: without it, new sandboxes have what their backend has by that name, and builds on it fail, until the next start builds it again. --force removes it`;
        throw new SandboxError(REASONS.template_in_use, text);
      }
      // Only the server can end it.
      if (store.builds.unfinished(template.id).some(({ state }) => state === "building")) {
        const text = `template '${name}' is being built: wait for the build; one that a crash has cut ends at the next start`;
        throw new SandboxError(REASONS.template_in_use, text);
      }
      store.templates.remove({ id: template.id });
      return template;
    });
    print(`template ${nameOf(removed)} is removed`);
    return 0;
  },
};
